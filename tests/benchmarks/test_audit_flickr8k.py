"""The audit's bench measures what it says."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.audit_flickr8k import _found_again, audit_row, measure, table
from made_pairs import SMALL, make_pairs
from sremkit.audit.scoring.types import NoiseRate, PairScores
from sremkit.data.noise import Noise
from sremkit.data.pairs import MISSING


def made(score: list[float], better_image: list[int]) -> PairScores:
    m = len(score)
    numbers, zeros = np.zeros(m, dtype=np.int64), np.zeros(m, dtype=np.float32)
    return PairScores(
        match_prob=np.array(score),
        energy_i2t=zeros,
        energy_t2i=zeros,
        rank_i2t=numbers + 1,
        rank_t2i=numbers + 1,
        better_text=numbers + MISSING,
        better_image=np.array(better_image),
        fold=numbers,
        candidates=3,
        noise_rate=NoiseRate(0.4, 0.3, 0.5),
        note="",
    )


def test_the_measures_of_a_worked_example() -> None:
    # Pairs 0 and 1 are wrong. 0 and 2 are flagged: one of two flagged is wrong, one of two wrong ones is flagged.
    # Wrong scores 0.01 and 0.6 against right ones 0.02, 0.8: 0.01 is below both, 0.6 below one: 3 of 4.
    noise = Noise(np.array([1, 0, 2, 3]), np.array([True, True, False, False]), "caption")
    verdicts = made([0.01, 0.6, 0.02, 0.8], [0, MISSING, MISSING, MISSING])
    found = measure(verdicts, noise)
    assert found["auroc"] == 0.75
    assert found["precision"] == 0.5
    assert found["recall"] == 0.5
    assert found["expected_precision"] == pytest.approx((0.99 + 0.98) / 2)
    # Text 0 belongs to image 0, which is named; text 1 to image 1, and none is named.
    assert _found_again(verdicts, noise, np.arange(4)) == 0.5


def test_a_row_names_its_noise_and_its_cost() -> None:
    pairs, _ = make_pairs(0.0, num_images=150)
    row = audit_row(pairs, 0.3, SMALL)
    assert row["protocol"] == "caption"
    assert len(row["noise_hash"]) == 16
    assert row["true_rate"] == pytest.approx(0.3, abs=0.01)
    assert row["cpu_seconds"] > 0
    assert "AUROC" in table([row])
