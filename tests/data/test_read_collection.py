"""A whole collection is read split by split, or whole if it has no splits."""

from __future__ import annotations

from pathlib import Path

import pytest

from layouts import image_rows, write_flickr8k, write_image, write_precomp, write_shard
from sremkit.data.csv_parquet import TextTable
from sremkit.data.format_utils import UnknownSplitError
from sremkit.data.formats import read_collection, read_pairs
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
    assert {name: (pairs.split, len(pairs)) for name, pairs in collection.pairs.items()} == {"all": ("all", 2)}


def test_a_split_of_a_collection_without_splits_is_a_clear_error(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "x.tar", {"0": "a dog"})
    with pytest.raises(DataError, match=r"x\.tar has no splits; leave --split away"):
        read_collection(shard, splits=["train"])
    write_image(tmp_path / "a.png")
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
def test_the_error_for_a_table_without_pairs_names_no_invented_split(tmp_path: Path, content: str) -> None:
    (tmp_path / "header.csv").write_text(content)
    with pytest.raises(DataError, match="holds no pairs") as said:
        read_collection(tmp_path / "header.csv")
    assert "?" not in str(said.value)


def test_bad_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    (tmp_path / "pairs.csv").write_text("image,text\na.png,a dog\nb.png,a cat\n")
    (pairs,) = read_collection(tmp_path / "pairs.csv").pairs.values()
    assert len(pairs) == 1
    assert pairs.skipped.reasons == {"the image is missing": 1}
    with pytest.raises(DataError, match="the image is missing"):
        read_collection(tmp_path / "pairs.csv", on_error="raise")


TABLE = (
    "image,text,split,note\n"
    "a.png,a dog,train,1\n"
    "b.png,a cat,train,2\n"  # no such image
    "a.png,a bird\n"  # too few fields
    "a.png,a fish,dev,3\n"
    "b.png,a frog,dev,4\n"
    "a.png,a horse,val,5\n"
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_image(tmp_path / "a.png")
    (tmp_path / "pairs.csv").write_text(TABLE)
    return tmp_path / "pairs.csv"


def test_a_table_is_parsed_once_for_all_splits_and_rows(table: Path, monkeypatch) -> None:
    passes = []
    rows = TextTable.rows
    monkeypatch.setattr(TextTable, "rows", lambda *given: passes.append(given) or rows(*given))
    collection = read_collection(table, keep_rows=True)
    assert len(passes) == 1
    assert {name: list(pairs.texts) for name, pairs in collection.pairs.items()} == {
        "dev": ["a fish"],
        "train": ["a dog"],
        "val": ["a horse"],
    }
    assert [pairs.skipped.count for pairs in collection.pairs.values()] == [2, 2, 1]  # one has no split
    source = collection.table
    assert (source.columns, source.roles) == (
        ["image", "text", "split", "note"],
        {"image": "image", "text": "text"},
    )
    assert {number: reason for number, (_, reason) in source.problems.items()} == {
        1: "the image is missing",
        2: "2 fields where the header has 4",
        4: "the image is missing",
    }
    assert source.table.take([5, 2, 0])[3] == ["5", None, "1"]
    assert source.table.where(4) == f"{table}, line 6"


def test_one_split_of_a_table_reports_the_rows_of_no_other(table: Path) -> None:
    collection = read_collection(table, splits=["val"], keep_rows=True)
    assert list(collection.pairs) == ["val"]
    assert sorted(collection.table.problems) == [2]
    table.write_text(TABLE.replace("a.png,a bird\n", ""))
    assert read_pairs(table, split="val").texts == ["a horse"]  # the bad row of dev is not an error
    with pytest.raises(DataError, match=r"line 5: the image is missing.*on_error='skip'"):
        read_pairs(table, split="dev")
    with pytest.raises(DataError, match=r"has no split 'test'; it has: dev, train, val"):
        read_pairs(table, split="test")


def test_rows_of_a_parquet_file_keep_their_types(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    write_image(tmp_path / "a.png")
    columns = {"image": ["a.png", None], "text": ["a dog", "a cat"], "tags": [["x"], ["y", "z"]]}
    parquet.write_table(pa.table(columns), tmp_path / "pairs.parquet")
    collection = read_collection(tmp_path / "pairs.parquet", keep_rows=True)
    assert collection.table.problems == {1: (f"{tmp_path / 'pairs.parquet'}, row 1", "no image")}
    assert collection.table.table.take([1, 0])[2].to_pylist() == [["y", "z"], ["x"]]
    assert read_collection(tmp_path / "pairs.parquet").table is None
