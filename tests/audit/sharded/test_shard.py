"""Shards that are tar archives and tables, also damaged ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from layouts import write_image, write_tar
from reviewed_audits import open_reviewed
from sharded import Watched, small_plan, write_image_shard
from sremkit.audit.export import export
from sremkit.audit.result_table import ResultTable
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.sharded.plan import list_shards
from sremkit.audit.sharded.run import audit_shards
from sremkit.errors import DataError
from sremkit.review.images import AuditImages

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("jinja2")


def table_of(out: Path):
    return parquet.read_table(out / "pairs.parquet")


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three good shards, one that is no archive, and one without a readable image."""
    root = tmp_path_factory.mktemp("tars")
    for number in range(3):
        write_image_shard(root / f"{number:05d}.tar", range(60 * number, 60 * number + 60))
    (root / "00003.tar").write_bytes(b"no archive" * 100)
    write_tar(root / "00004.tar", [("x.jpg", b"no image"), ("x.txt", b"a caption")])
    return root


@pytest.fixture(scope="module")
def finished(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("audits") / "tars"
    summary = audit_shards(small_plan(out, list_shards(tars))).summary
    assert summary is not None
    return out, summary


def test_bad_shards_stop_nothing_and_stay_in_the_table(finished) -> None:
    out, summary = finished
    table = table_of(out)
    assert summary["scored"] == 180
    assert summary["pairs"] == len(table) == 182
    assert sum(summary["problems"].values()) == 2
    problems = [problem for problem in table["problem"].to_pylist() if problem]
    assert len(problems) == 2
    assert "00003" in problems[0]
    assert "00004" in problems[1] or "image" in problems[1]
    assert table["match_probability"].null_count == 2
    assert table["id"].to_pylist()[-1] == "x"


def test_a_fraction_is_flagged_where_scores_are_ranks(finished, tars: Path, tmp_path: Path) -> None:
    out, summary = finished
    assert (summary["noise_rate"], summary["mismatches"]) == (None, 0)
    shutil.copytree(out, tmp_path / "out")
    plan = small_plan(tmp_path / "out", list_shards(tars), cutoff=CutoffRule(fraction=0.25))
    summary = audit_shards(plan).summary
    assert summary is not None
    assert 0 < summary["mismatches"] <= 45  # a quarter of 180; pairs of one score share their fate
    assert summary["mismatches"] == sum(filter(None, table_of(tmp_path / "out")["is_mismatch"].to_pylist()))
    assert summary["expected_precision"] is None


def test_the_page_shows_images_out_of_the_shards(finished) -> None:
    page = (finished[0] / "report.html").read_text()
    assert page.count("data:image/") > 3
    assert "could not be" in page or "cannot be" in page


def test_a_sharded_audit_is_reviewed_like_any_other(finished, tars: Path, tmp_path: Path) -> None:
    shutil.copytree(finished[0], tmp_path / "out")
    reviewed = open_reviewed(tmp_path / "out")
    facts = reviewed.table.facts["source"]
    images = AuditImages(tmp_path / "out", facts)
    assert (len(reviewed), images.note) == (182, "")
    for row in (0, 70, 150):  # one of each good shard
        number, name = reviewed.image_name(row)
        image = images.open(number, name)
        assert image is not None
    reviewed.decide(70, "drop", None, client="test")
    counts = export(tmp_path / "out", tmp_path / "keep.txt", format="keep-list")
    assert counts.decided == 1
    dropped = reviewed.details([70])[0]["id"]
    assert dropped not in (tmp_path / "keep.txt").read_text().split()


def test_kept_pairs_are_exported_to_shards(finished, tmp_path: Path) -> None:
    counts = export(finished[0], tmp_path / "kept", format="shards")
    assert counts.written > 100
    assert (tmp_path / "kept" / "00001.tar").is_file()


def test_an_unreadable_first_shard_leaves_the_columns_in_order(tmp_path: Path) -> None:
    write_tables(tmp_path, extra=[[3], [4]])
    (tmp_path / "a.parquet").write_bytes(b"no table")
    audit_shards(small_plan(tmp_path / "out", list_shards(tmp_path)))
    table = table_of(tmp_path / "out")
    assert table.schema.names[:6] == ["id", "image", "text", "path", "width", "own_text"]
    assert table.schema.names[-1] == "problem"
    assert table["width"].to_pylist() == [None] + [3] * 60 + [4] * 60
    assert table["problem"].null_count == 120


def test_features_are_not_extracted_twice(tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fake_encoders import FakeImages

    shards = list_shards(tars)[:3]
    with pytest.raises(KeyboardInterrupt):
        audit_shards(small_plan(tmp_path / "out", shards), engine=Watched(breaks_after=3))
    monkeypatch.setattr(FakeImages, "encode", None)
    assert audit_shards(small_plan(tmp_path / "out", shards)).summary is not None
    (tmp_path / "out" / "model" / "facts.json").unlink()  # another choice of the sample asks for no features either
    (tmp_path / "out" / "summary.json").unlink()
    assert audit_shards(small_plan(tmp_path / "out", shards, max_train_pairs=150)).summary is not None


def test_no_usable_shard_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(DataError, match="none of the 1 shards can be used; the first because"):
        audit_shards(small_plan(tmp_path / "out", list_shards(tmp_path)))


def write_tables(root: Path, *, extra: list) -> None:
    """A table a shard, with a column of the user's; its captions are the same texts as ours, or nearly."""
    for number, values in enumerate(extra):
        rows = range(60 * number, 60 * number + 60)
        for k in rows:
            write_image(root / f"{k}.png", (37 * k % 200, 50, 90))  # type: ignore[arg-type]
        captions = [f"{k} " + "x" * (1 + 37 * k % 200) for k in rows]
        if number == 1:
            captions[7] += "  "  # ours is stripped, so here theirs is another column
        table = pa.table({"path": [f"{k}.png" for k in rows], "text": captions, "width": values * 60})
        parquet.write_table(table, root / f"t{number}.parquet")


def test_tables_keep_the_columns_of_their_owner(tmp_path: Path) -> None:
    write_tables(tmp_path, extra=[[3], [4]])
    audit_shards(small_plan(tmp_path / "out", list_shards(tmp_path)))
    table = table_of(tmp_path / "out")
    assert table["id"].to_pylist()[0::60] == ["t0/0", "t1/0"]
    assert table["width"].to_pylist() == [3] * 60 + [4] * 60
    assert ResultTable(tmp_path / "out").facts["own"] == {
        "path": "path",
        "text": "own_text",
        "width": "width",
    }
    own, ours = table["own_text"].to_pylist(), table["text"].to_pylist()
    assert own[67] == ours[67] + "  "
    assert own[:67] == ours[:67]


def test_a_column_that_is_empty_in_one_shard_is_null_there(tmp_path: Path) -> None:
    write_tables(tmp_path, extra=[[None], [4]])
    audit_shards(small_plan(tmp_path / "out", list_shards(tmp_path)))
    assert table_of(tmp_path / "out")["width"].to_pylist() == [None] * 60 + [4] * 60


@pytest.mark.parametrize(
    ("values", "merged"),
    [([3], ["3", "three"]), ([2.5], ["2.5", "three"]), ([[1, 2]], ["[1, 2]", "three"])],
)
def test_columns_of_types_that_do_not_go_together_become_text(values: list, merged: list[str], tmp_path: Path) -> None:
    write_tables(tmp_path, extra=[values, ["three"]])
    audit_shards(small_plan(tmp_path / "out", list_shards(tmp_path)))
    assert table_of(tmp_path / "out")["width"].to_pylist()[::60] == merged


def test_numbers_of_two_widths_stay_numbers(tmp_path: Path) -> None:
    write_tables(tmp_path, extra=[[3], [2.5]])
    audit_shards(small_plan(tmp_path / "out", list_shards(tmp_path)))
    assert table_of(tmp_path / "out")["width"].to_pylist()[::60] == [3.0, 2.5]


def test_groups_of_duplicates_are_numbered_through_all_shards(tmp_path: Path) -> None:
    for number in range(2):
        rows = range(60)
        for k in rows:
            write_image(tmp_path / f"{number}-{k}.png", (3 * k, 250 - 2 * k, 5 * k))  # type: ignore[arg-type]
        captions = ["twice", "Twice!", *(f"{number} {k}" for k in rows[2:])]
        table = pa.table({"path": [f"{number}-{k}.png" for k in rows], "text": captions})
        parquet.write_table(table, tmp_path / f"t{number}.parquet")
    summary = audit_shards(small_plan(tmp_path / "out", list_shards(tmp_path))).summary
    groups = table_of(tmp_path / "out")["duplicate_text_group"].to_pylist()
    assert [k for k, group in enumerate(groups) if group is not None] == [0, 1, 60, 61]
    assert (groups[0], groups[60]) == (0, 1)
    assert summary is not None
    assert summary["duplicates"]["text"] == 4
