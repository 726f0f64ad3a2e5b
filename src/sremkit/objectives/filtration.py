"""The filter: which pairs count as clean.

    clean_i  <=>  E_i < threshold  and  argmax_j F_ij = i                                    [eq:filter]

A pair must be both certain (low energy) and the best match of its row. Each direction has its own clean set.
"""

from __future__ import annotations

from torch import Tensor

from sremkit.objectives.candidates import as_logits, diagonal_mask, keep_valid, low
from sremkit.objectives.energy import energy


def select_clean(logits: Tensor, threshold: float, *, valid: Tensor | None = None) -> Tensor:
    """Clean pairs (b,) bool, judged by rows; pass `logits.T` for the text-to-image direction.

    A tie between the pair and a negative counts against the pair: a model that cannot tell them apart has not
    matched them. With all logits equal nothing is clean.
    """
    logits = as_logits(logits.detach())
    negatives = keep_valid(logits, valid).masked_fill(diagonal_mask(logits), low(logits.dtype))
    is_best = logits.diagonal() > negatives.amax(dim=1)
    return is_best & (energy(logits, valid=valid) < threshold)  # [eq:filter]
