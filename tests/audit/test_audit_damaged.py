"""Files of an audit that were cut off or overwritten: the audit makes them again, an export names them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from audit.small_tables import GOOD, audited, column, write_table
from sharded import small_plan, write_embeddings
from sremkit.audit.audit import Audit
from sremkit.audit.export import export
from sremkit.audit.sharded.plan import list_embeddings
from sremkit.audit.sharded.run import audit_shards
from sremkit.errors import DataError, UserError

parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("jinja2")


def cut(path: Path) -> None:
    """Keep the first half of a file, as a full disk or a broken copy does."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def spoil(path: Path) -> None:
    """Keep beginning and end, and nothing of what lies between the first bytes and the footer."""
    content = path.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little") + 8
    path.write_bytes(content[:4] + b"\xff" * (len(content) - 4 - footer) + content[-footer:])


DAMAGES = [
    ("pairs.parquet", cut),
    ("pairs.parquet", spoil),
    ("pairs.parquet", lambda path: path.write_bytes(b"")),
    ("summary.json", lambda path: path.write_text("{")),
    ("summary.json", lambda path: path.write_text("[]")),
    ("summary.json", lambda path: path.write_bytes(b'"\xff"')),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_result_is_made_again(tmp_path: Path, scorer, name: str, damage) -> None:
    path, out = write_table(tmp_path / "data", GOOD), tmp_path / "out"
    first = audited(path, out)
    damage(out / name)
    again = audited(path, out)
    assert not again.was_complete
    assert again.get_issues() == first.get_issues()
    assert parquet.read_table(out / "pairs.parquet") == first.get_issues()
    assert json.loads((out / "summary.json").read_text())["mismatches"] == 2
    again.report()
    assert audited(path, out).was_complete


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_damaged_audit_json_is_written_again(tmp_path: Path, scorer, content: str) -> None:
    path, out = write_table(tmp_path / "data", GOOD), tmp_path / "out"
    audited(path, out)
    (out / "audit.json").write_text(content)
    (out / "summary.json").unlink()
    messages: list[str] = []
    audit = Audit.from_csv(path, image="file", id="uid").find(out, workers=0, notify=messages.append)
    assert messages == []  # an earlier input is not known, so no change is reported
    assert column(audit, "is_mismatch") == [False, True, True, False]
    assert json.loads((out / "audit.json").read_text())["rows"] == 4


@pytest.mark.parametrize("damage", [cut, spoil, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("format", ["keep-list", "parquet"])
def test_an_export_names_the_damaged_file_and_the_remedy(tmp_path: Path, scorer, damage, format: str) -> None:
    audited(write_table(tmp_path / "data", GOOD), tmp_path / "out")
    damage(tmp_path / "out" / "pairs.parquet")
    with pytest.raises(DataError, match=r"pairs\.parquet is damaged .*the same `srem audit` command makes it"):
        export(tmp_path / "out", tmp_path / "exported", format=format)
    assert not (tmp_path / "exported").exists()


@pytest.fixture
def sharded(tmp_path: Path):
    """A function that audits embeddings in two shards, shard by shard."""
    write_embeddings(tmp_path, num_images=60, shards=2, fuzz=0.2)
    shards = list_embeddings(tmp_path / "images", tmp_path / "texts")
    return lambda: audit_shards(small_plan(tmp_path / "out", shards))


@pytest.mark.parametrize(
    ("name", "damage"),
    [("pairs.parquet", cut), ("summary.json", lambda path: path.write_text("{"))],
)
def test_a_damaged_result_of_a_sharded_audit_is_merged_again(tmp_path: Path, sharded, name: str, damage) -> None:
    sharded()
    first = parquet.read_table(tmp_path / "out" / "pairs.parquet")
    damage(tmp_path / "out" / name)
    assert not sharded().was_complete
    assert parquet.read_table(tmp_path / "out" / "pairs.parquet") == first
    assert sharded().was_complete


def test_a_damaged_beginning_does_not_let_the_two_ways_of_auditing_mix(tmp_path: Path, sharded, scorer) -> None:
    sharded()
    (tmp_path / "out" / "audit.json").write_text("{")
    rng = np.random.default_rng(0)
    plain = Audit.from_embeddings(rng.normal(size=(6, 4)), rng.normal(size=(6, 4)))
    with pytest.raises(UserError, match="made with --sharded"):
        plain.find(tmp_path / "out")
    (tmp_path / "out" / "summary.json").unlink()
    assert sharded().summary is not None  # its own it takes up again
