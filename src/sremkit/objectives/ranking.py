"""Hinge ranking of clean pairs against their hardest negative, with swapped weights.

    L_w = mean over clean [margin - w_i S_ii + S_i,phi(i)]_+,   S = sigmoid(F)               [eq:ranking]

The weight of a pair comes from the other direction: images are ranked with what the texts say, and the
reverse.
"""

from __future__ import annotations

from torch import Tensor

from sremkit.objectives.candidates import as_logits, hardest_negative
from sremkit.objectives.energy import mean_over


def weighted_ranking(
    logits: Tensor, weight: Tensor, clean: Tensor, *, margin: float, valid: Tensor | None = None
) -> Tensor:
    """Ranking loss of the rows; 0 when no pair is clean.

    Args:
        weight: (b,) `sensitivity(logits.T)`, that is, of the other direction.
        clean: (b,) bool, clean in this direction.

    A clean row without any negative has nothing to be ranked against and contributes 0 to the mean.
    """
    logits = as_logits(logits)
    hard_index, has_negative = hardest_negative(logits.detach(), valid)
    hard = logits.gather(1, hard_index[:, None]).squeeze(1)
    hinge = (margin - weight.detach() * logits.diagonal().sigmoid() + hard.sigmoid()).relu()
    return mean_over(hinge.where(has_negative, 0.0), clean)  # [eq:ranking]
