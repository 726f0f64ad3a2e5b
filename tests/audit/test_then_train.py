"""Training with and without the flagged pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audit.small_tables import GOOD, audited, write_table
from made_pairs import SMALL, make_pairs
from sremkit.audit import audit as audit_module
from sremkit.audit import then_train
from sremkit.audit.audit import Audit
from sremkit.audit.embed import read_vectors
from sremkit.audit.then_train import compare_training
from sremkit.cli.main import main
from stand_in_scorer import StandInScorer


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(then_train, "SEEDS", 2)
    monkeypatch.setattr(then_train, "EPOCHS", 4)


def test_training_without_wrong_pairs_is_better_and_without_right_ones_worse() -> None:
    pairs, is_wrong = make_pairs(rate=0.5, num_images=200, captions=2, fuzz=0.3)
    vectors = read_vectors(pairs)
    calls: list[tuple[int, int]] = []
    found = compare_training(vectors, ~is_wrong, settings=SMALL, on_run=lambda *done: calls.append(done))
    assert found is not None
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert found["all"]["pairs"] == pytest.approx(320, abs=3)
    assert found["kept"]["pairs"] < found["all"]["pairs"]
    assert found["kept"]["rsum"] > found["all"]["rsum"] + 3 * found["all"]["rsum_std"]
    assert found == compare_training(vectors, ~is_wrong, settings=SMALL)
    # Half of the right pairs with all wrong ones: the test pairs are then wrong, too, and less is learnt.
    rng = np.random.default_rng(0)
    worse = compare_training(vectors, is_wrong | (rng.random(len(is_wrong)) < 0.2), settings=SMALL)
    assert worse is not None
    assert worse["kept"]["rsum"] < found["kept"]["rsum"]


def test_no_image_is_trained_and_tested_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, is_wrong = make_pairs(rate=0.3, num_images=120, captions=2)
    seen = []

    def record(vectors, rows, test, images, settings, steps, seed) -> dict[str, float]:
        of = vectors.image_of_text.numpy()
        seen.append((set(of[rows]), set(of[test]), steps))
        assert not is_wrong[test].any()
        return {"rsum": 1.0}

    monkeypatch.setattr(then_train, "_recall", record)
    compare_training(read_vectors(pairs), ~is_wrong, settings=SMALL)
    assert len(seen) == 4
    assert all(not (trained & tested) for trained, tested, _ in seen)
    assert len({steps for _, _, steps in seen}) == 1  # as many steps with fewer pairs


def test_too_few_pairs_are_not_compared() -> None:
    pairs, is_wrong = make_pairs(rate=0.3, num_images=40, captions=1)
    assert compare_training(read_vectors(pairs), ~is_wrong, settings=SMALL) is None


def test_the_comparison_is_kept_printed_and_shown(
    tmp_path: Path, scorer: StandInScorer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    path, out = write_table(tmp_path / "data", GOOD), tmp_path / "audit"
    of = {"i2t/R@1": 1.0, "t2i/R@1": 2.0, "rsum": 33.3, "rsum_std": 0.4}
    found = {"test_images": 7, "test_pairs": 8, "seeds": 3, "all": {"pairs": 4, **of}, "kept": {"pairs": 2, **of}}
    kept: list[list[bool]] = []

    def compare(vectors, which, **options) -> dict:
        kept.append(which.tolist())
        return found

    monkeypatch.setattr(audit_module, "compare_training", compare)
    command = ["audit", str(path), "--image", "file", "--id", "uid", "-o", str(out), "--workers", "0", "--then-train"]
    assert main(command) == 0
    assert "trained on the kept pairs (2): R_sum 33.3 ± 0.4" in capsys.readouterr().out
    assert kept == [[True, False, False, True]]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "What cleaning brings" in page
    assert "33.3 ± 0.4" in page
    assert main(command) == 0  # the audit and the comparison are complete
    assert len(kept) == 1
    assert Audit.load(out).summary["training"] == found
    assert main([*command, "--sharded"]) == 2


def test_nothing_is_trained_where_nothing_is_flagged(
    tmp_path: Path, scorer: StandInScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = [[row[0], row[1], f"right {row[0]}", "x"] for row in GOOD]
    audit = audited(write_table(tmp_path / "data", right), tmp_path / "audit")
    monkeypatch.setattr(audit_module, "compare_training", None)  # a call would fail
    assert audit.compare_training() is None
