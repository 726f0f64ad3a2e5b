"""A whole collection is read split by split, or at once where it has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from layouts import image_rows, write_flickr8k, write_picture, write_precomp, write_shard
from sremkit.data.all_splits import read_collection
from sremkit.data.splits import UnknownSplitError
from sremkit.errors import DataError


def test_every_split_is_found(tmp_path: Path) -> None:
    collection = read_collection(write_flickr8k(tmp_path, {"train": 3, "val": 2, "rest": 1}))
    assert collection.has_splits
    assert {name: pairs.num_images for name, pairs in collection.pairs.items()} == {
        "rest": 1,
        "train": 3,
        "val": 2,
    }
    assert all(pairs.split == name for name, pairs in collection.pairs.items())


def test_named_splits_alone_are_read_by_either_name(tmp_path: Path) -> None:
    source = write_flickr8k(tmp_path, {"train": 3, "val": 2, "test": 1})
    assert list(read_collection(source, splits=["dev", "test"]).pairs) == ["val", "test"]
    with pytest.raises(UnknownSplitError, match="has no split 'nowhere'; it has: test, train, val"):
        read_collection(source, splits=["nowhere"])


def test_a_collection_without_splits_is_read_once(tmp_path: Path) -> None:
    collection = read_collection(write_shard(tmp_path / "x.tar", {"0": "a dog", "1": "a cat"}))
    assert not collection.has_splits
    assert {name: (pairs.split, len(pairs)) for name, pairs in collection.pairs.items()} == {
        "all": ("all", 2)
    }


def test_a_split_of_a_collection_without_splits_is_a_sentence(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "x.tar", {"0": "a dog"})
    with pytest.raises(DataError, match=r"x\.tar has no splits; leave --split away"):
        read_collection(shard, splits=["train"])
    write_picture(tmp_path / "a.png")
    (tmp_path / "pairs.csv").write_text("image,text,part\na.png,a dog,1\n")
    with pytest.raises(DataError, match=r"pairs\.csv has no split column; leave --split away"):
        read_collection(tmp_path / "pairs.csv", splits=["1"])
    assert list(read_collection(tmp_path / "pairs.csv", splits=["all"]).pairs) == ["all"]
    named = read_collection(tmp_path / "pairs.csv", splits=["1"], split_column="part")
    assert list(named.pairs) == ["1"]


def test_split_files_are_found_in_precomputed_folders(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("dev", 1)):
        write_precomp(tmp_path, split, image_rows(count), ["a dog"] * count)
    assert {name: len(pairs) for name, pairs in read_collection(tmp_path).pairs.items()} == {
        "dev": 1,
        "train": 3,
    }


def test_generated_scenes_have_their_splits_although_they_never_fail() -> None:
    collection = read_collection("scenes", num_scenes=2)
    assert {len(pairs) for pairs in collection.pairs.values()} == {10}
    assert "train" in collection.pairs


@pytest.mark.parametrize("content", ["image,text\n", "image,text,split\n", "image,text\nnone.png,a dog\n"])
def test_a_table_without_pairs_is_said_without_a_made_up_split(tmp_path: Path, content: str) -> None:
    (tmp_path / "header.csv").write_text(content)
    with pytest.raises(DataError, match="holds no pairs") as said:
        read_collection(tmp_path / "header.csv")
    assert "?" not in str(said.value)


def test_bad_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    write_picture(tmp_path / "a.png")
    (tmp_path / "pairs.csv").write_text("image,text\na.png,a dog\nb.png,a cat\n")
    (pairs,) = read_collection(tmp_path / "pairs.csv").pairs.values()
    assert len(pairs) == 1
    assert pairs.skipped.reasons == {"the picture is missing": 1}
    with pytest.raises(DataError, match="the picture is missing"):
        read_collection(tmp_path / "pairs.csv", on_error="raise")
