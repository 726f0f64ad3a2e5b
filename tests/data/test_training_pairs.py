"""Keep-lists select pairs by id, and report unknown ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from layouts import write_image
from sremkit.data import read_pairs
from sremkit.data.training_pairs import keep_list_lines, keep_only, read_keep_list
from sremkit.errors import DataError


@pytest.fixture
def pairs(tmp_path: Path):
    for k in range(4):
        write_image(tmp_path / f"{k}.png")
    rows = "".join(f"{name},{k}.png,text {name}\n" for k, name in enumerate("abcd"))
    (tmp_path / "pairs.csv").write_text("id,image,text\n" + rows)
    return read_pairs(tmp_path / "pairs.csv")


def test_pairs_are_kept_in_their_own_order(tmp_path: Path, pairs) -> None:
    (tmp_path / "keep.txt").write_text("d\r\n\n  b \n")
    kept = keep_only(pairs, tmp_path / "keep.txt")
    assert list(kept.pair_ids) == ["b", "d"]
    assert list(kept.texts) == ["text b", "text d"]
    assert kept.image_of_text.tolist() == [1, 3]
    assert kept.source_rows.tolist() == [1, 3]


def test_ids_without_a_pair_are_named_and_counted(tmp_path: Path, pairs) -> None:
    (tmp_path / "keep.txt").write_text("a\nzebra\nyak\n")
    with pytest.raises(DataError, match=r"2 of the 3 ids in .* match no pair of pairs \(train\), such as 'yak'"):
        keep_only(pairs, tmp_path / "keep.txt")


def test_an_empty_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keep.txt").write_text("\n\n")
    with pytest.raises(DataError, match="holds no ids"):
        read_keep_list(tmp_path / "keep.txt")


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    ids = ["a b", "é", "#1", "x,y"]
    (tmp_path / "keep.txt").write_text("".join(keep_list_lines(ids)), encoding="utf-8")
    assert read_keep_list(tmp_path / "keep.txt") == ids


@pytest.mark.parametrize("pair_id", ["a\nb", " a", "a ", "", "a\rb"])
def test_an_id_that_cannot_be_read_back_is_refused(pair_id: str) -> None:
    with pytest.raises(DataError, match="does not fit on a line"):
        list(keep_list_lines([pair_id]))
