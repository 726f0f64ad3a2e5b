"""Exports of the pairs to keep carry that they were filtered, and the next audit knows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from made_pairs import make_pairs, vectors_of
from sremkit import Audit
from sremkit.audit.filtered import filter_note, filtered_at, filtered_before, share_left_before
from sremkit.audit.inputs import source_of_embeddings
from sremkit.audit.scoring.types import NearMismatches, NoiseRate
from sremkit.audit.summary import rate_facts

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    pairs, _ = make_pairs(0.3, num_images=320, captions=1, fuzz=0.2)
    images, texts = vectors_of(pairs)
    folder = tmp_path_factory.mktemp("filtered")
    return Audit.from_embeddings(images[pairs.image_of_text], texts).find(folder / "audit")


def test_an_export_of_kept_pairs_says_what_is_left(audit: Audit, tmp_path: Path) -> None:
    counts = audit.export(tmp_path / "keep.txt")
    assert counts.left is not None
    assert counts.left.kept == counts.written
    assert vars(counts.left) == {name: audit.summary["remaining"][name] for name in vars(counts.left)}
    facts = filtered_at(tmp_path / "keep.txt")
    assert (facts["rows"], facts["kept"]) == (320, counts.written)
    assert share_left_before(facts) == pytest.approx(counts.left.high / counts.left.kept)


def test_only_kept_pairs_are_filtered(audit: Audit, tmp_path: Path) -> None:
    counts = audit.export(tmp_path / "all.csv", select="all")
    assert counts.left is None
    assert filtered_at(tmp_path / "all.csv") == {}


@pytest.mark.parametrize("name", ["kept.csv", "kept.parquet"])
def test_the_fact_is_read_again(audit: Audit, tmp_path: Path, name: str) -> None:
    audit.export(tmp_path / name)
    if name.endswith("parquet"):
        Path(f"{tmp_path / name}.audit.json").unlink()  # the file itself carries it as well
    assert filtered_at(tmp_path / name)["rows"] == 320


def test_a_table_of_kept_verdicts_was_filtered() -> None:
    source = source_of_embeddings(np.eye(4), np.eye(4))
    columns = source.rows.columns
    assert filtered_before(source) is None
    columns |= {"match_probability": [0.9] * 4, "verdict": ["keep"] * 4}
    assert filtered_before(source) == {"filtered_by": "srem audit", "kept": 4}
    columns["verdict"] = ["keep", "mismatch", "keep", "keep"]
    assert filtered_before(source) is None


def test_an_audit_of_filtered_pairs_does_not_reassure() -> None:
    clean, near = NoiseRate(0.0, 0.0, 0.01), NearMismatches(0.0, 0.05, {}, can_tell=True)
    before = {"filtered_by": "srem audit", "rows": 1000, "kept": 800, "left": {"kept": 800, "low": 40.0, "high": 80.0}}
    numbers = {"scored": 800, "flagged": 0, "expected_wrong": 0.0}
    first, second = (rate_facts(clean, near, **numbers, before=facts) for facts in (None, before))
    assert first["near_mismatches"]["can_tell"]
    assert not second["near_mismatches"]["can_tell"]
    assert second["remaining"]["high"] >= 80
    assert not second["remaining"]["can_tell"]
    assert "40 to 80 of the kept pairs were probably still wrong" in filter_note(before)
    assert share_left_before({"filtered_by": "srem audit", "kept": 4}) == 1.0
