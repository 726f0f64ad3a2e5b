"""An audit that is run again uses the decisions of a review as labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from audit.small_tables import GOOD, audited, column, write_table
from reviewed_audits import open_reviewed
from sremkit.audit.decisions import Decision, Decisions, PairKey
from sremkit.audit.scoring import cross_fit
from sremkit.audit.scoring.cross_fit import CrossFitScorer
from sremkit.audit.scoring.types import PairVectors, ScoringSettings
from sremkit.data.pairs import MISSING

pytest.importorskip("pyarrow")

PAIRS = [PairKey(row[0], row[1], row[2]) for row in GOOD]


def decide(out: Path, **actions: str) -> None:
    decisions = Decisions(out)
    for pair_id, action in actions.items():
        pair = next(pair for pair in PAIRS if pair.id == pair_id)
        text = "another caption" if action in ("edit", "accept") else None
        decisions.decide(pair, 0, Decision(action, text) if action != "undo" else None, client="test")
    decisions.close()


def test_decided_pairs_have_the_verdict_of_the_person(tmp_path: Path, scorer) -> None:
    path, out = write_table(tmp_path / "data", GOOD), tmp_path / "out"
    assert column(audited(path, out), "is_mismatch") == [False, True, True, False]
    decide(out, b="keep", d="drop", c="edit")
    audit = audited(path, out)
    assert not audit.was_complete
    assert column(audit, "reviewed") == [
        None,
        "match",
        None,
        "mismatch",
    ]  # an edited one: unknown
    assert column(audit, "match_probability")[1] == 1.0
    assert column(audit, "match_probability")[3] == 0.0
    assert column(audit, "is_mismatch")[1] is False
    assert column(audit, "is_mismatch")[3] is True
    assert audit.summary["labels"] == {"match": 1, "mismatch": 1}


def test_an_accepted_suggestion_labels_the_given_caption_as_wrong(tmp_path: Path, scorer) -> None:
    path, out = write_table(tmp_path / "data", GOOD), tmp_path / "out"
    audited(path, out)
    decide(out, b="accept")
    assert column(audited(path, out), "reviewed") == [None, "mismatch", None, None]


def test_equal_decisions_repeat_no_work_and_undone_ones_are_forgotten(tmp_path: Path, scorer) -> None:
    path, out = write_table(tmp_path / "data", GOOD), tmp_path / "out"
    first = audited(path, out)
    decide(out, a="drop")
    audited(path, out)
    assert audited(path, out).was_complete
    assert len(scorer.scored) == 2
    decide(out, a="undo")
    again = audited(path, out)
    assert not again.was_complete
    assert again.get_issues() == first.get_issues()


def test_pairs_that_were_labels_do_not_count_for_the_precision_of_the_audit(tmp_path: Path, scorer) -> None:
    path, out = write_table(tmp_path / "data", GOOD), tmp_path / "out"
    audited(path, out)
    decide(out, b="drop")
    assert open_reviewed(out).progress()["precision"]["flagged"] == 1
    audited(path, out)
    assert open_reviewed(out).progress()["precision"]["flagged"] == 0
    decide(out, c="keep")  # flagged, and wrongly so
    assert open_reviewed(out).progress()["precision"]["confirmed"] == 0
    assert open_reviewed(out).progress()["precision"]["flagged"] == 1


def test_dropped_pairs_are_not_trained_on_and_kept_ones_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = torch.randn(120, 6, generator=generator), torch.randn(120, 6, generator=generator)
    label = np.full(120, MISSING)
    label[:10], label[10:20] = 0, 1
    vectors = PairVectors(images, texts, torch.arange(120), np.ones(120, dtype=bool), label=label)
    unlabelled = PairVectors(images, texts, torch.arange(120), np.ones(120, dtype=bool))
    assert vectors.fingerprint() != unlabelled.fingerprint()
    trained: list[np.ndarray] = []
    train_scorers = cross_fit.train_scorers

    def recording(vectors: PairVectors, rows: np.ndarray, *arguments: object, **options: object) -> object:
        trained.append(rows)
        assert vectors.is_trusted[10:20].all()
        return train_scorers(vectors, rows, *arguments, **options)

    monkeypatch.setattr(cross_fit, "train_scorers", recording)
    settings = ScoringSettings(folds=2, dual_encoders=1, epochs=1, warmup_epochs=1, hidden_size=8, embed_size=8)
    scores = CrossFitScorer(settings).fit_score(vectors)
    assert len(trained) == 2
    assert not np.isin(np.concatenate(trained), np.arange(10)).any()
    assert np.isin(np.arange(10, 20), np.concatenate(trained)).all()
    assert scores.is_scored.all()  # dropped pairs are scored, too
