"""Worker processes give what one process gives, whatever their number."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from made_pairs import SMALL, make_pairs
from sremkit.audit.embed import read_vectors
from sremkit.audit.scoring import cross_fit
from sremkit.audit.scoring.cross_fit import CrossFitScorer
from sremkit.worker_processes import one_thread, run_parallel


@pytest.mark.parametrize("workers", [1, 2])
def test_every_number_is_worked_on_once_by_one_thread(workers: int) -> None:
    found = dict(run_parallel(lambda k: (k * k, torch.get_num_threads(), os.getpid()), range(5), workers))
    assert {number: result[0] for number, result in found.items()} == {k: k * k for k in range(5)}
    assert {result[1] for result in found.values()} == {1}
    assert (os.getpid() in {result[2] for result in found.values()}) == (workers == 1)


def test_an_error_of_a_worker_reaches_the_caller() -> None:
    def fail(number: int) -> int:
        raise ValueError(f"number {number} is wrong")

    with pytest.raises(ValueError, match="is wrong"):
        list(run_parallel(fail, range(3), 2))


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_scores_do_not_depend_on_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_fit, "MIN_PAIRS_FOR_WORKERS", 100)
    vectors = read_vectors(make_pairs(0.3, num_images=120)[0])
    alone, together = (CrossFitScorer(SMALL, workers=workers).fit_score(vectors) for workers in (1, 2))
    for name in ("match_prob", "energy_i2t", "rank_t2i", "better_text", "fold"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(together, name))
    assert vars(alone.noise_rate) == vars(together.noise_rate)
