"""The audit with its real scorer, on vectors in which the wrong pairs are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sremkit.audit.audit import Audit
from sremkit.evaluation import detection_metrics

pytest.importorskip("pyarrow")


def vectors_of_pairs(count: int, *, wrong: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two linear views of a common cause; the texts of some pairs have changed places."""
    rng = np.random.default_rng(seed)
    cause = rng.standard_normal((count, 6))
    images, texts = (
        cause @ rng.standard_normal((6, width)) + 0.1 * rng.standard_normal((count, width)) for width in (24, 16)
    )
    chosen = rng.choice(count, round(wrong * count), replace=False)
    texts[chosen] = texts[np.roll(chosen, 1)]
    is_wrong = np.zeros(count, dtype=bool)
    is_wrong[chosen] = True
    return images, texts, is_wrong


def test_wrong_pairs_are_found_without_any_truth(tmp_path: Path) -> None:
    images, texts, is_wrong = vectors_of_pairs(400, wrong=0.25)
    stages: list[str] = []
    audit = Audit.from_embeddings(images, texts).find(
        tmp_path / "out", progress=lambda stage, done, total: stages.append(stage)
    )
    table = audit.get_issues()
    flagged = np.array(table["is_mismatch"].to_pylist())
    assert detection_metrics(is_wrong, table["match_probability"].to_numpy())["auroc"] > 0.99
    assert is_wrong[flagged].mean() >= 0.93
    assert flagged[is_wrong].mean() >= 0.7
    rate = audit.summary["noise_rate"]
    assert rate["low"] <= 0.25 <= rate["high"]
    better = np.array([value is not None for value in table["better_text_id"].to_pylist()])
    assert better[flagged].mean() > 0.5
    assert len(set(stages)) > 1
    assert audit.report().stat().st_size > 10_000

    again: list[str] = []
    fraction = Audit.from_embeddings(images, texts).find(
        tmp_path / "out", fraction=0.1, progress=lambda stage, done, total: again.append(stage)
    )
    assert fraction.summary["mismatches"] == 40
    assert fraction.get_issues()["match_probability"] == table["match_probability"]
    assert "scored folds" not in again  # the folds were kept
    assert "scored folds" in stages


def test_thirty_pairs_get_a_note_instead_of_scores(tmp_path: Path) -> None:
    images, texts, _ = vectors_of_pairs(30, wrong=0.3)
    audit = Audit.from_embeddings(images, texts).find(tmp_path / "out")
    assert audit.summary["scored"] == 0
    assert audit.summary["noise_rate"] is None
    assert "too few" in audit.summary["note"]
    assert audit.get_issues()["match_probability"].null_count == 30
    assert "too few" in audit.report().read_text(encoding="utf-8")


def test_vectors_that_say_nothing_crash_nothing(tmp_path: Path) -> None:
    audit = Audit.from_embeddings(np.ones((150, 4)), np.ones((150, 3))).find(tmp_path / "out")
    assert audit.summary["mismatches"] == 0
    assert audit.summary["note"]
