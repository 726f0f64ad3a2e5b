"""What is kept is written in the form that the next tool reads."""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from layouts import picture_bytes, write_picture, write_tar
from sremkit.audit.audit import Audit
from sremkit.audit.export import EXPORTS, export
from sremkit.audit.shards import Counts, stays_inside
from sremkit.audit.stages import Choice
from sremkit.cli.export import KINDS
from sremkit.data import read_pairs
from sremkit.data.keep_list import keep_only, read_keep_list
from sremkit.errors import DataError, UserError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = [
    ["uid", "file", "text", "note"],
    ["007", "0.png", "fine, with a comma", 'a "quoted" note'],
    ["008", "1.png", "wrong", ""],
    ["009", "none.png", "fine but missing", "x"],
    ["010", "2.png", "fine\nover two lines", "y"],
]


@pytest.fixture
def out(tmp_path: Path, judge) -> Path:
    for k in range(3):
        write_picture(tmp_path / f"{k}.png")
    with (tmp_path / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows(ROWS)
    Audit.from_csv(tmp_path / "pairs.csv", image="file", id="uid").find(tmp_path / "out", workers=0)
    return tmp_path / "out"


def csv_rows(path: Path, **options) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file, **options))


def test_a_keep_list_holds_the_ids_of_what_is_neither_wrong_nor_unreadable(out: Path, tmp_path: Path) -> None:
    assert export(out, tmp_path / "keep.txt") == Counts(written=2, of=4, left_out=0)
    assert (tmp_path / "keep.txt").read_text() == "007\n010\n"
    kept = keep_only(read_pairs(tmp_path / "pairs.csv", image="file", on_error="skip"), tmp_path / "keep.txt")
    assert list(kept.texts) == ["fine, with a comma", "fine\nover two lines"]


def test_a_filtered_csv_has_the_own_columns_and_cells(out: Path, tmp_path: Path) -> None:
    export(out, tmp_path / "clean.csv", what="csv")
    assert csv_rows(tmp_path / "clean.csv") == [ROWS[0], ROWS[1], ROWS[4]]
    export(out, tmp_path / "dropped.tsv", what="csv", which="drop")
    assert csv_rows(tmp_path / "dropped.tsv", delimiter="\t") == [ROWS[0], ROWS[2], ROWS[3]]


def test_a_filtered_parquet_has_the_own_columns_in_their_types(tmp_path: Path, judge) -> None:
    for k in range(4):
        write_picture(tmp_path / f"{k}.png")
    own = pa.table(
        {
            "id": [1, 2, 3, 4],
            "image": [f"{k}.png" for k in range(4)],
            "caption": ["fine", "wrong", "fine", "fine"],
            "fold": [0.5, 1.5, 2.5, 3.5],
            "tags": [["a"], [], None, ["b"]],
        }
    )
    parquet.write_table(own, tmp_path / "pairs.parquet")
    Audit.from_parquet(tmp_path / "pairs.parquet").find(tmp_path / "out", workers=0)
    export(tmp_path / "out", tmp_path / "clean.parquet", what="parquet")
    assert parquet.read_table(tmp_path / "clean.parquet") == own.take([0, 2, 3])
    export(tmp_path / "out", tmp_path / "clean.csv", what="csv")
    assert csv_rows(tmp_path / "clean.csv")[1] == ["1", "0.png", "fine", "0.5", '["a"]']


def test_a_folder_is_exported_as_a_table_that_can_be_read_again(tmp_path: Path, judge) -> None:
    for k in range(3):
        write_picture(tmp_path / "data" / f"{k}.png").with_suffix(".txt").write_text("fine\nwrong\n")
    Audit.from_folder(tmp_path / "data").find(tmp_path / "out", workers=0)
    export(tmp_path / "out", tmp_path / "clean.csv", what="csv")
    again = read_pairs(tmp_path / "clean.csv", image_root=tmp_path / "data")
    assert list(again.pair_ids) == ["0.png#0", "1.png#0", "2.png#0"]


def test_another_choice_can_be_made_when_exporting(out: Path, tmp_path: Path) -> None:
    export(out, tmp_path / "all.txt", choice=Choice(threshold=0.0))
    assert (tmp_path / "all.txt").read_text() == "007\n008\n010\n"
    export(out, tmp_path / "few.txt", choice=Choice(threshold=0.5), which="drop")
    assert (tmp_path / "few.txt").read_text() == "008\n009\n"


def test_nothing_of_the_users_is_overwritten(out: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"pairs\.csv exists already"):
        export(out, tmp_path / "pairs.csv", what="csv")
    assert csv_rows(tmp_path / "pairs.csv") == ROWS


def test_mistakes_are_answered_with_sentences(out: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no export called 'excel'; choose from: keep-list, csv"):
        export(out, tmp_path / "x", what="excel")
    with pytest.raises(DataError, match="holds no finished audit"):
        export(tmp_path, tmp_path / "x")
    with pytest.raises(UserError, match="only pairs that came from tar shards"):
        export(out, tmp_path / "x", what="shards")
    with pytest.raises(DataError, match="'007' does not consist of 32 hex digits"):
        export(out, tmp_path / "x", what="uids")
    with pytest.raises(UserError, match="have no column 'split'"):
        export(out, tmp_path / "x", split="train")
    with pytest.raises(DataError, match="no pair is to be kept"):
        export(out, tmp_path / "x", choice=Choice(threshold=1.0))
    assert not (tmp_path / "x").exists()


def test_the_command_knows_every_export() -> None:
    assert tuple(EXPORTS) == KINDS


def write_uid_shard(path: Path, samples: dict[str, tuple[str, str]]) -> Path:
    """A shard as DataComp has them: key -> caption and uid."""
    members = []
    for key, (caption, uid) in samples.items():
        members += [
            (f"{key}.png", picture_bytes()),
            (f"{key}.txt", caption.encode()),
            (f"{key}.json", json.dumps({"uid": uid, "url": "x"}).encode()),
        ]
    return write_tar(path, members)


UIDS = {"00": "f" * 32, "01": "0" * 31 + "1", "10": "00000000000000020000000000000003", "11": "a" * 32}


@pytest.fixture
def shards(tmp_path: Path, judge) -> Path:
    """An audit of two shards; 01 is wrong, and ../up would be unpacked elsewhere."""
    captions = {"00": "fine", "01": "wrong", "10": "fine", "11": "fine"}
    for k in "01":
        samples = {key: (captions[key], UIDS[key]) for key in captions if key[0] == k}
        if k == "1":
            samples["../up"] = ("fine", "b" * 32)
        write_uid_shard(tmp_path / "shards" / f"{k}.tar", samples)
    Audit.from_webdataset(tmp_path / "shards").find(tmp_path / "out", workers=0)
    return tmp_path / "out"


def test_filtered_shards_hold_the_kept_samples_byte_by_byte(shards: Path, tmp_path: Path) -> None:
    counts = export(shards, tmp_path / "clean", what="shards")
    assert counts == Counts(written=3, of=5, left_out=1)
    with tarfile.open(tmp_path / "clean" / "0.tar") as archive:
        assert archive.getnames() == ["00.png", "00.txt", "00.json"]
        assert archive.extractfile("00.png").read() == picture_bytes()
    with tarfile.open(tmp_path / "clean" / "1.tar") as archive:
        assert archive.getnames() == [
            f"{key}.{end}" for key in ("10", "11") for end in ("png", "txt", "json")
        ]
    assert list(read_pairs(tmp_path / "clean").pair_ids) == ["00", "10", "11"]


@pytest.mark.parametrize(
    ("name", "inside"),
    [("a", True), ("a/b", True), ("a..b", True), ("../a", False), ("a/../../b", False), ("/a", False),
     ("..\\a", False), ("C:\\a", False)],
)  # fmt: skip
def test_names_that_leave_their_folder_are_told(name: str, inside: bool) -> None:
    assert stays_inside(name) == inside


def test_uids_are_sorted_pairs_of_64_bit_numbers(shards: Path, tmp_path: Path) -> None:
    export(shards, tmp_path / "uids.npy", what="uids")
    uids = np.load(tmp_path / "uids.npy", allow_pickle=False)
    assert uids.dtype == np.dtype("u8,u8")
    # 32 hex digits are two numbers of 16: ...02 and ...03, then a..., b..., f...; 01 is wrong, so 0...1 is not there
    halves = [(2, 3), *((int(digit * 16, 16),) * 2 for digit in "abf")]
    assert uids.tolist() == halves


def test_uids_come_from_a_column_or_from_the_ids(tmp_path: Path, judge) -> None:
    for k in range(3):
        write_picture(tmp_path / f"{k}.png")
    for name, header in (("column", "name,image,text,uid"), ("ids", "uid,image,text")):
        uids = [f"{3 - k:032x}" for k in range(3)]
        rows = [
            f"{k},{k}.png,fine,{uid}" if name == "column" else f"{uid},{k}.png,fine"
            for k, uid in enumerate(uids)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *rows]) + "\n")
        Audit.from_csv(tmp_path / f"{name}.csv").find(tmp_path / name, workers=0)
        export(tmp_path / name, tmp_path / f"{name}.npy", what="uids")
        assert np.load(tmp_path / f"{name}.npy").tolist() == [(0, 1), (0, 2), (0, 3)]


def test_one_split_can_be_exported(tmp_path: Path, judge) -> None:
    for split in ("train", "val"):
        for k in range(2):
            write_picture(tmp_path / "data" / split / f"{k}.png").with_suffix(".txt").write_text("fine\n")
    Audit.from_folder(tmp_path / "data").find(tmp_path / "out", workers=0)
    export(tmp_path / "out", tmp_path / "keep.txt", split="train")
    assert read_keep_list(tmp_path / "keep.txt") == ["train/0.png#0", "train/1.png#0"]
    assert len(keep_only(read_pairs(tmp_path / "data"), tmp_path / "keep.txt")) == 2


def test_an_id_that_does_not_fit_on_a_line_is_refused(tmp_path: Path, judge) -> None:
    audit = Audit.from_embeddings(np.eye(3), np.eye(3), ids=["a", "b\nc", "d"])
    audit.find(tmp_path / "out")
    with pytest.raises(DataError, match="cannot stand on a line of its own"):
        export(tmp_path / "out", tmp_path / "keep.txt")
