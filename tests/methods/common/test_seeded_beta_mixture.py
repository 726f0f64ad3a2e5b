"""The beta mixture seeded with known pairs: against loops, and where sigmoids have saturated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracles import mscn as oracle
from sremkit.errors import DataError
from sremkit.methods.common.mixtures import seeded_match_probability


def similarities(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Similarities of 300 wrong and 500 right pairs in one list, and of other right and wrong pairs."""
    rng = np.random.default_rng(seed)
    given = np.concatenate([rng.beta(2, 6, 300), rng.beta(7, 3, 500)])
    return tuple(torch.from_numpy(x) for x in (given, rng.beta(8, 3, 60), rng.beta(2, 8, 90)))


@pytest.mark.parametrize("iterations", [0, 1, 10])
def test_the_mixture_from_examples_matches_the_oracle(iterations: int) -> None:
    given, right, wrong = similarities()
    given[0], given[-1] = 0.0, 1.0  # saturated sigmoids
    got = seeded_match_probability(given, matched=right, mismatched=wrong, iterations=iterations)
    expected = oracle.probability_of_matching(given.tolist(), right.tolist(), wrong.tolist(), iterations)
    # Ours holds densities above 1e-12, so that far out probabilities below 1e-7 are no longer the true ones.
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-7)


def test_the_mixture_tells_right_from_wrong_also_when_the_examples_are_elsewhere() -> None:
    given, right, wrong = similarities()
    kept = seeded_match_probability(given, matched=right, mismatched=wrong) > 0.5
    assert kept[:300].float().mean() < 0.15
    assert kept[300:].float().mean() > 0.85
    exchanged = seeded_match_probability(given, matched=wrong, mismatched=right) > 0.5
    assert exchanged[:300].float().mean() > 0.85  # the examples decide which component is matched


def saturated(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As a trained network gives them: right pairs nearly all at 1, wrong ones everywhere, some of them at 1."""
    rng = np.random.default_rng(seed)
    given = np.concatenate([rng.beta(0.3, 0.3, 400), 1 - rng.beta(0.05, 5, 600)])
    return tuple(torch.from_numpy(x) for x in (given, 1 - rng.beta(0.05, 2, 60), rng.beta(0.3, 0.6, 90)))


def test_right_pairs_that_have_saturated_are_kept() -> None:
    """Regression: the wrong pairs' component became wide and steep at both ends, and nothing was kept."""
    given, right, wrong = saturated()
    kept = seeded_match_probability(given, matched=right, mismatched=wrong) > 0.5
    assert kept[400:].float().mean() > 0.95
    assert kept[:400].float().mean() < 0.45  # those that look right
    expected = oracle.probability_of_matching(given.tolist(), right.tolist(), wrong.tolist(), 10)
    assert kept.tolist() == [p > 0.5 for p in expected]


def test_too_few_examples_are_an_error() -> None:
    given, right, wrong = similarities()
    with pytest.raises(DataError, match=r"at least two matched pairs are needed .* got 1"):
        seeded_match_probability(given, matched=right[:1], mismatched=wrong)
