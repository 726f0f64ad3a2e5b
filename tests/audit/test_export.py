"""What is kept is written in the form that the next tool reads."""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from layouts import image_bytes, write_image, write_tar
from sremkit.audit.audit import Audit
from sremkit.audit.export import EXPORTS, Counts, export
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.writers.shards import stays_inside
from sremkit.audit.writers.tables import sort_rows
from sremkit.cli.export import FORMATS
from sremkit.data import read_pairs
from sremkit.data.training_pairs import keep_only, read_keep_list
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
def out(tmp_path: Path, scorer) -> Path:
    for k in range(3):
        write_image(tmp_path / f"{k}.png")
    with (tmp_path / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows(ROWS)
    Audit.from_csv(tmp_path / "pairs.csv", image="file", id="uid").find(tmp_path / "out", workers=0)
    return tmp_path / "out"


def csv_rows(path: Path, **options) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file, **options))


def test_a_keep_list_holds_the_ids_of_what_is_neither_wrong_nor_unreadable(out: Path, tmp_path: Path) -> None:
    assert export(out, tmp_path / "keep.txt") == Counts(written=2, total=4, left_out=0)
    assert (tmp_path / "keep.txt").read_text() == "007\n010\n"
    kept = keep_only(read_pairs(tmp_path / "pairs.csv", image="file", on_error="skip"), tmp_path / "keep.txt")
    assert list(kept.texts) == ["fine, with a comma", "fine\nover two lines"]


OURS = ["match_probability", "verdict", "better_text"]


def test_a_filtered_csv_has_the_own_columns_and_cells_with_score_verdict_and_better_caption(out, tmp_path) -> None:
    export(out, tmp_path / "clean.csv", format="csv")
    kept = ["0.99", "keep", ""]
    assert csv_rows(tmp_path / "clean.csv") == [ROWS[0] + OURS, ROWS[1] + kept, ROWS[4] + kept]
    export(out, tmp_path / "dropped.tsv", format="csv", select="drop")
    header, wrong, unusable = csv_rows(tmp_path / "dropped.tsv", delimiter="\t")
    assert header == [*ROWS[0], *OURS, "problem"]
    assert wrong == [*ROWS[2], "0.01", "mismatch", "fine, with a comma", ""]
    assert unusable[:-1] == [*ROWS[3], "", "unusable", ""]
    assert unusable[-1].endswith("line 4: the image is missing")


def test_the_ending_decides_the_format_and_all_rows_come_worst_first(out: Path, tmp_path: Path) -> None:
    assert export(out, tmp_path / "all.csv", select="all") == Counts(written=4, total=4, left_out=0)
    assert [row[0] for row in csv_rows(tmp_path / "all.csv")] == ["uid", "008", "007", "010", "009"]
    export(out, tmp_path / "all.parquet", select="all")
    assert parquet.read_table(tmp_path / "all.parquet")["uid"].to_pylist() == ["007", "008", "009", "010"]
    export(out, tmp_path / "without.ending", select="drop")
    assert (tmp_path / "without.ending").read_text() == "008\n009\n"


def test_another_cutoff_changes_the_verdicts_of_a_csv(out: Path, tmp_path: Path) -> None:
    export(out, tmp_path / "all.csv", select="all", cutoff=CutoffRule(threshold=0.0))
    assert [row[5] for row in csv_rows(tmp_path / "all.csv")[1:]] == ["keep", "keep", "keep", "unusable"]


def test_a_column_of_the_users_with_the_name_of_ours_stays(tmp_path: Path, scorer) -> None:
    write_image(tmp_path / "a.png")
    rows = [["image", "text", "verdict"], ["a.png", "fine", "x"], ["a.png", "wrong", "y"], ["a.png", "ok", "z"]]
    with (tmp_path / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    Audit.from_csv(tmp_path / "pairs.csv").find(tmp_path / "out", workers=0).export(tmp_path / "all.csv", select="all")
    header, first, *_ = csv_rows(tmp_path / "all.csv")
    assert header == ["image", "text", "verdict", "match_probability", "audit_verdict", "better_text", "problem"]
    assert first == ["a.png", "wrong", "y", "0.01", "mismatch", "fine", ""]


def test_rows_are_sorted_with_few_of_them_in_memory(monkeypatch) -> None:
    monkeypatch.setattr("sremkit.audit.writers.tables.BUCKET_ROWS", 3)
    keys = np.array([0.5, np.nan, 0.1, 0.5, 0.0, 0.9, 0.1, 0.3])
    rows = ([k, key] for k, key in enumerate(keys))
    assert [row[0] for row in sort_rows(rows, keys)] == [4, 2, 6, 7, 0, 3, 5, 1]  # equal keys in their order, NaN last
    assert list(sort_rows([], np.zeros(0))) == []


def test_an_export_for_fiftyone_names_paths_labels_and_captions(out: Path, tmp_path: Path) -> None:
    counts = export(out, tmp_path / "fiftyone", format="fiftyone", select="all")
    assert counts == Counts(written=3, total=4, left_out=1)
    labels = json.loads((tmp_path / "fiftyone" / "labels.json").read_text())
    assert "classes" not in labels  # with them, FiftyOne would read the labels as numbers
    assert labels["labels"]["008"] == {
        "label": "mismatch",
        "confidence": 0.99,
        "attributes": {"caption": "wrong", "better_caption": "fine, with a comma", "match_probability": 0.01},
    }
    assert labels["labels"]["007"]["label"] == "match"
    paths = json.loads((tmp_path / "fiftyone" / "data.json").read_text())
    assert paths.keys() == labels["labels"].keys()
    assert all(Path(path).is_file() for path in paths.values())


def test_a_filtered_parquet_has_the_own_columns_in_their_types(tmp_path: Path, scorer) -> None:
    for k in range(4):
        write_image(tmp_path / f"{k}.png")
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
    export(tmp_path / "out", tmp_path / "clean.parquet", format="parquet")
    assert parquet.read_table(tmp_path / "clean.parquet") == own.take([0, 2, 3])
    export(tmp_path / "out", tmp_path / "clean.csv", format="csv")
    assert csv_rows(tmp_path / "clean.csv")[1] == ["1", "0.png", "fine", "0.5", '["a"]', "0.99", "keep", ""]


def test_a_folder_is_exported_as_a_table_that_can_be_read_again(tmp_path: Path, scorer) -> None:
    for k in range(3):
        write_image(tmp_path / "data" / f"{k}.png").with_suffix(".txt").write_text("fine\nwrong\n")
    Audit.from_folder(tmp_path / "data").find(tmp_path / "out", workers=0)
    export(tmp_path / "out", tmp_path / "clean.csv", format="csv")
    again = read_pairs(tmp_path / "clean.csv", image_root=tmp_path / "data")
    assert list(again.pair_ids) == ["0.png#0", "1.png#0", "2.png#0"]


def test_an_export_can_use_another_cutoff(out: Path, tmp_path: Path) -> None:
    export(out, tmp_path / "all.txt", cutoff=CutoffRule(threshold=0.0))
    assert (tmp_path / "all.txt").read_text() == "007\n008\n010\n"
    export(out, tmp_path / "few.txt", cutoff=CutoffRule(threshold=0.5), select="drop")
    assert (tmp_path / "few.txt").read_text() == "008\n009\n"


def test_nothing_of_the_users_is_overwritten(out: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"pairs\.csv exists already"):
        export(out, tmp_path / "pairs.csv", format="csv")
    assert csv_rows(tmp_path / "pairs.csv") == ROWS


def test_mistakes_are_user_errors(out: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no export format 'excel'; choose from: keep-list, csv"):
        export(out, tmp_path / "x", format="excel")
    with pytest.raises(DataError, match="holds no finished audit"):
        export(tmp_path, tmp_path / "x")
    with pytest.raises(UserError, match="only pairs from tar shards"):
        export(out, tmp_path / "x", format="shards")
    with pytest.raises(DataError, match="'007' does not consist of 32 hex digits"):
        export(out, tmp_path / "x", format="uids")
    with pytest.raises(UserError, match="have no column 'split'"):
        export(out, tmp_path / "x", split="train")
    with pytest.raises(DataError, match="there is no pair to keep"):
        export(out, tmp_path / "x", cutoff=CutoffRule(threshold=1.0))
    assert not (tmp_path / "x").exists()


def test_the_command_knows_every_export() -> None:
    assert tuple(EXPORTS) == FORMATS


def write_uid_shard(path: Path, samples: dict[str, tuple[str, str]]) -> Path:
    """A shard as DataComp has them: key -> caption and uid."""
    members = []
    for key, (caption, uid) in samples.items():
        members += [
            (f"{key}.png", image_bytes()),
            (f"{key}.txt", caption.encode()),
            (f"{key}.json", json.dumps({"uid": uid, "url": "x"}).encode()),
        ]
    return write_tar(path, members)


UIDS = {"00": "f" * 32, "01": "0" * 31 + "1", "10": "00000000000000020000000000000003", "11": "a" * 32}


@pytest.fixture
def shards(tmp_path: Path, scorer) -> Path:
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
    counts = export(shards, tmp_path / "clean", format="shards")
    assert counts == Counts(written=3, total=5, left_out=1)
    with tarfile.open(tmp_path / "clean" / "0.tar") as archive:
        assert archive.getnames() == ["00.png", "00.txt", "00.json"]
        assert archive.extractfile("00.png").read() == image_bytes()
    with tarfile.open(tmp_path / "clean" / "1.tar") as archive:
        assert archive.getnames() == [f"{key}.{end}" for key in ("10", "11") for end in ("png", "txt", "json")]
    assert list(read_pairs(tmp_path / "clean").pair_ids) == ["00", "10", "11"]


@pytest.mark.parametrize(
    ("name", "inside"),
    [("a", True), ("a/b", True), ("a..b", True), ("../a", False), ("a/../../b", False), ("/a", False),
     ("..\\a", False), ("C:\\a", False)],
)  # fmt: skip
def test_names_that_leave_their_folder_are_detected(name: str, inside: bool) -> None:
    assert stays_inside(name) == inside


def test_uids_are_sorted_pairs_of_64_bit_numbers(shards: Path, tmp_path: Path) -> None:
    export(shards, tmp_path / "uids.npy", format="uids")
    uids = np.load(tmp_path / "uids.npy", allow_pickle=False)
    assert uids.dtype == np.dtype("u8,u8")
    # 32 hex digits are two numbers of 16: ...02 and ...03, then a..., b..., f...; 01 is wrong, so 0...1 is not there
    halves = [(2, 3), *((int(digit * 16, 16),) * 2 for digit in "abf")]
    assert uids.tolist() == halves


def test_uids_come_from_a_column_or_from_the_ids(tmp_path: Path, scorer) -> None:
    for k in range(3):
        write_image(tmp_path / f"{k}.png")
    for name, header in (("column", "name,image,text,uid"), ("ids", "uid,image,text")):
        uids = [f"{3 - k:032x}" for k in range(3)]
        rows = [f"{k},{k}.png,fine,{uid}" if name == "column" else f"{uid},{k}.png,fine" for k, uid in enumerate(uids)]
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *rows]) + "\n")
        Audit.from_csv(tmp_path / f"{name}.csv").find(tmp_path / name, workers=0)
        export(tmp_path / name, tmp_path / f"{name}.npy", format="uids")
        assert np.load(tmp_path / f"{name}.npy").tolist() == [(0, 1), (0, 2), (0, 3)]


def test_one_split_can_be_exported(tmp_path: Path, scorer) -> None:
    for split in ("train", "val"):
        for k in range(2):
            write_image(tmp_path / "data" / split / f"{k}.png").with_suffix(".txt").write_text("fine\n")
    Audit.from_folder(tmp_path / "data").find(tmp_path / "out", workers=0)
    export(tmp_path / "out", tmp_path / "keep.txt", split="train")
    assert read_keep_list(tmp_path / "keep.txt") == ["train/0.png#0", "train/1.png#0"]
    assert len(keep_only(read_pairs(tmp_path / "data"), tmp_path / "keep.txt")) == 2


def test_an_id_that_does_not_fit_on_a_line_is_refused(tmp_path: Path, scorer) -> None:
    audit = Audit.from_embeddings(np.eye(3), np.eye(3), ids=["a", "b\nc", "d"])
    audit.find(tmp_path / "out")
    with pytest.raises(DataError, match="does not fit on a line"):
        export(tmp_path / "out", tmp_path / "keep.txt")
