"""Which of two known heaps a similarity belongs to: a mixture of two betas that starts from examples of each.

Similarities of pairs known to be right and known to be wrong give one distribution each; EM then moves both, and
their weights, to the similarities of the pairs in question. A heap has one top, so that of the wrong pairs does not
rise towards 1, nor that of the right pairs towards 0: else, where right pairs have saturated at 1, the wider one of
the wrong pairs takes both ends, and nobody is right any more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sremkit.errors import DataError
from sremkit.methods.beta_mixture import TwoBetas, match_moments

EDGE = 1e-3  # similarities are held this far from 0 and 1; a saturated sigmoid says no more than that


def probability_of_matching(
    similarity: Tensor, *, right: Tensor, wrong: Tensor, iterations: int = 10
) -> Tensor:
    """How likely each similarity (n,) in [0, 1] is that of a right pair: (n,) float64.

    Args:
        right: similarities of some right pairs.
        wrong: similarities of some wrong pairs.
        iterations: steps of EM.
    """
    for name, known in (("right", right), ("wrong", wrong)):
        if len(known) < 2:
            raise DataError(
                f"two {name} pairs at least are needed to know what their similarities look like, got {len(known)}"
            )
    examples = _inside(torch.cat([wrong, right]))
    of_right = torch.arange(len(examples), device=examples.device) >= len(wrong)
    mixture = _heaps(examples, torch.stack([~of_right, of_right], dim=1).double())
    # How many examples there are of each says nothing about the pairs in question.
    mixture = TwoBetas(torch.full_like(mixture.weight, 0.5), mixture.alpha, mixture.beta)
    x = _inside(similarity)
    for _ in range(iterations):
        mixture = _heaps(x, mixture.responsibility(x))
    return mixture.responsibility(x)[:, 1]


def _heaps(x: Tensor, responsibility: Tensor) -> TwoBetas:
    """Distributions with the moments of their shares of x; narrower ones of the same mean where they would bend up."""
    mixture = match_moments(x, responsibility)
    # A beta density rises towards 1 where beta < 1, and towards 0 where alpha < 1.
    bending = torch.stack([mixture.beta[0], mixture.alpha[1]]).clamp_max(1.0)
    return TwoBetas(mixture.weight, mixture.alpha / bending, mixture.beta / bending)


def _inside(similarity: Tensor) -> Tensor:
    return similarity.double().clamp(EDGE, 1 - EDGE)
