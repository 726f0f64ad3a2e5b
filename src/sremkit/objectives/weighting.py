"""Swapped gradient weighting: the entropy of a query, the weight of its pair, and the ranking loss that uses it.

    e_i = -sum_j P_ij log P_ij / log B,   P = softmax of the row                             [eq:entropy]
    w_i = 1 - e_i * 1[margin - S_ii + S_i,phi(i) > 0],   S = sigmoid(F)                      [eq:weight]
    L_w = mean over clean [margin - w_i S_ii + S_i,phi(i)]_+                                 [eq:ranking]

phi(i) is the hardest negative of row i. Confident pairs have larger weights. A pair that leads its hardest negative
by the margin has weight 1. The weight in L_w comes from the other direction: images are ranked with the weights of
the text rows, texts with those of the image rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sremkit.objectives.logits import as_logits, count_valid, hardest_negative, mask_invalid, mean_over


def normalized_entropy(logits: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Entropy (b,) of each row over its maximum, in [0, 1]; 0 for a row with a single candidate."""
    logits = as_logits(logits, square=False)
    log_p = mask_invalid(logits, valid).log_softmax(dim=1)
    entropy = -(log_p.exp() * log_p).sum(dim=1)
    return scale_entropy(entropy, count_valid(logits, valid))  # [eq:entropy]


def scale_entropy(entropy: Tensor, candidates: Tensor) -> Tensor:
    """Entropy (b,) over its maximum, the logarithm of the number of candidates (b,)."""
    # With one candidate the entropy is 0, so any divisor but log 1 = 0 will do.
    log_candidates = torch.where(candidates > 1, candidates, 2.0).log()
    return (entropy / log_candidates).clamp(0.0, 1.0)


def sensitivity(logits: Tensor, *, margin: float, valid: Tensor | None = None) -> Tensor:
    """Weight (b,) in [0, 1] from the entropy of each row; the ranking loss of the *other* direction uses it.

    It carries no gradient, as in the paper's derivative of the ranking loss. With a gradient, the loss could be lowered
    by making a pair more uncertain.
    """
    logits = as_logits(logits.detach())
    pair, hard, _ = _pair_and_hardest(logits, valid)  # a row without a negative has entropy 0, so weight 1
    unsatisfied = margin - pair.sigmoid() + hard.sigmoid() > 0
    return 1 - torch.where(unsatisfied, normalized_entropy(logits, valid=valid), 0.0)  # [eq:weight]


def weighted_ranking(
    logits: Tensor, weight: Tensor, clean: Tensor, *, margin: float, valid: Tensor | None = None
) -> Tensor:
    """Ranking loss of the rows, averaged over clean pairs; 0 when no pair is clean.

    Args:
        weight: (b,) `sensitivity(logits.T)`, that is, of the other direction.
        clean: (b,) bool, clean in this direction.
    """
    return mean_over(weighted_hinge(logits, weight, margin=margin, valid=valid), clean)  # [eq:ranking]


def weighted_hinge(logits: Tensor, weight: Tensor, *, margin: float, valid: Tensor | None = None) -> Tensor:
    """[margin - w_i S_ii + S_i,phi(i)]_+ (b,) of each row; 0 for a row without negatives."""
    pair, hard, has_negative = _pair_and_hardest(as_logits(logits), valid)
    hinge = (margin - weight.detach() * pair.sigmoid() + hard.sigmoid()).relu()
    return hinge.where(has_negative, 0.0)


def _pair_and_hardest(logits: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """F_ii (b,), F_i,phi(i) (b,), and whether row i has a negative (b,)."""
    hard_index, has_negative = hardest_negative(logits.detach(), valid)
    return logits.diagonal(), logits.gather(1, hard_index[:, None]).squeeze(1), has_negative
