"""Folders of extracted features, written by hand as documented."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from layouts import write_features
from sremkit.data import read_pairs
from sremkit.data.formats.features import JOURNAL, MANIFEST
from sremkit.errors import DataError


def test_rows_of_a_split_are_found_by_their_place(tmp_path: Path) -> None:
    # images 0, 1 are train, 2, 3, 4 are val; each has two texts, so the texts of val are rows 4 to 9
    pairs = read_pairs(write_features(tmp_path, {"train": 2, "val": 3}), split="val")
    assert list(pairs.image_ids) == ["image 2", "image 3", "image 4"]
    assert list(pairs.pair_ids) == [f"pair {k}" for k in range(4, 10)]
    np.testing.assert_array_equal(pairs.image_of_text, [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(pairs.image_features.rows(np.arange(3)).values[:, 0], [2, 3, 4])
    np.testing.assert_array_equal(pairs.text_features.rows(np.arange(6)).values[:, 0], np.arange(4, 10))


def test_pairs_of_unreadable_images_are_left_out_for_any_on_error(tmp_path: Path) -> None:
    write_features(tmp_path, {"train": 3}, problems={1: "x.png: the image cannot be decoded"})
    for on_error in ("raise", "skip"):
        pairs = read_pairs(tmp_path, on_error=on_error)
        assert list(pairs.image_ids) == ["image 0", "image 2"]
        np.testing.assert_array_equal(pairs.image_of_text, [0, 0, 1, 1])
        np.testing.assert_array_equal(pairs.image_features.rows(np.arange(2)).values[:, 0], [0, 2])
        np.testing.assert_array_equal(pairs.text_features.rows(np.arange(4)).values[:, 0], [0, 1, 4, 5])
        assert pairs.skipped.count == 2
        assert "x.png" in pairs.skipped.examples[0]


def test_a_folder_without_splits_is_any_split(tmp_path: Path) -> None:
    write_features(tmp_path, {"all": 2}, has_splits=False)
    assert len(read_pairs(tmp_path, split="train")) == len(read_pairs(tmp_path, split="test")) == 4


def test_the_error_for_an_unknown_split_or_kind_lists_the_known_ones(tmp_path: Path) -> None:
    write_features(tmp_path, {"train": 1, "val": 1})
    with pytest.raises(DataError, match="has no split 'test'; it has: train, val"):
        read_pairs(tmp_path, split="test")
    with pytest.raises(DataError, match="no image features called 'grid'; it has: pooled"):
        read_pairs(tmp_path, features="grid")


def test_an_unfinished_extraction_is_a_clear_error(tmp_path: Path) -> None:
    write_features(tmp_path, {"train": 1})
    (tmp_path / MANIFEST).rename(tmp_path / JOURNAL)
    with pytest.raises(DataError, match="is not finished; resume it with the same `srem features` command"):
        read_pairs(tmp_path)


def test_a_damaged_folder_names_the_file(tmp_path: Path) -> None:
    write_features(tmp_path, {"train": 2})
    np.save(tmp_path / "pooled.npy", np.zeros((1, 3), dtype=np.float16))
    with pytest.raises(DataError, match=r"pooled\.npy has 1 rows instead of 2"):
        read_pairs(tmp_path)
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"id": "0"})[:-3])
    with pytest.raises(DataError, match=r"pairs\.jsonl cannot be read .*extract again"):
        read_pairs(tmp_path)
