"""Which of two known heaps a similarity belongs to: against loops, and where sigmoids have saturated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracles import mscn as oracle
from sremkit.errors import DataError
from sremkit.methods.known_heaps import probability_of_matching


def heaps(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Similarities of 300 wrong and 500 right pairs in one list, and of other right and wrong pairs."""
    rng = np.random.default_rng(seed)
    given = np.concatenate([rng.beta(2, 6, 300), rng.beta(7, 3, 500)])
    return tuple(torch.from_numpy(x) for x in (given, rng.beta(8, 3, 60), rng.beta(2, 8, 90)))


@pytest.mark.parametrize("iterations", [0, 1, 10])
def test_the_mixture_from_examples_matches_the_oracle(iterations: int) -> None:
    given, right, wrong = heaps()
    given[0], given[-1] = 0.0, 1.0  # saturated sigmoids
    got = probability_of_matching(given, right=right, wrong=wrong, iterations=iterations)
    expected = oracle.probability_of_matching(given.tolist(), right.tolist(), wrong.tolist(), iterations)
    # Ours holds densities above 1e-12, so that far out probabilities below 1e-7 are no longer the true ones.
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-7)


def test_the_mixture_tells_right_from_wrong_also_when_the_examples_are_elsewhere() -> None:
    given, right, wrong = heaps()
    kept = probability_of_matching(given, right=right, wrong=wrong) > 0.5
    assert kept[:300].float().mean() < 0.15
    assert kept[300:].float().mean() > 0.85
    exchanged = probability_of_matching(given, right=wrong, wrong=right) > 0.5
    assert exchanged[:300].float().mean() > 0.85  # it is the examples that say which heap is right


def saturated(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As a trained network gives them: right pairs nearly all at 1, wrong ones everywhere, some of them at 1."""
    rng = np.random.default_rng(seed)
    given = np.concatenate([rng.beta(0.3, 0.3, 400), 1 - rng.beta(0.05, 5, 600)])
    return tuple(torch.from_numpy(x) for x in (given, 1 - rng.beta(0.05, 2, 60), rng.beta(0.3, 0.6, 90)))


def test_right_pairs_that_have_saturated_are_kept() -> None:
    """Regression: the wrong pairs' component became wide and steep at both ends, and nothing was kept."""
    given, right, wrong = saturated()
    kept = probability_of_matching(given, right=right, wrong=wrong) > 0.5
    assert kept[400:].float().mean() > 0.95
    assert kept[:400].float().mean() < 0.45  # those that look right
    expected = oracle.probability_of_matching(given.tolist(), right.tolist(), wrong.tolist(), 10)
    assert kept.tolist() == [p > 0.5 for p in expected]


def test_too_few_examples_are_told() -> None:
    given, right, wrong = heaps()
    with pytest.raises(DataError, match=r"two right pairs at least are needed .* got 1"):
        probability_of_matching(given, right=right[:1], wrong=wrong)
