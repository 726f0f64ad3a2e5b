"""Active complementary loss of CRCL: a soft label weighs the pull of a pair and bounds the push of its negatives.

    l_i = -y_i log P_ii + complementary_weight sum_{j != i} tan P_ij / (sum_j tan P_ij)^(1 - y_i)
                                                                                    [eq:active-complementary]

P is the softmax of the row and y_i in [0, 1] the label of pair i. At y_i = 1 it is cross-entropy and the tan form of
RCL; at y_i = 0 nothing is pulled, and the rest lies between 0 and 1, so that a wrong pair has a bounded effect.
Pass the transposed logits for the other direction.
Reference: Qin et al., Cross-modal Active Complementary Learning with Self-refining Correspondence, NeurIPS 2023.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from sremkit.objectives.logits import as_logits, mask_invalid, not_negative


def active_complementary(
    logits: Tensor, label: Tensor, *, complementary_weight: float = 5.0, valid: Tensor | None = None
) -> Tensor:
    """The loss of each row (b,).

    Args:
        label: (b,) in [0, 1], without gradient.
        complementary_weight: of the negatives.
        valid: (b, b) bool, True where a candidate counts; for repeated images.
    """
    logits = as_logits(logits)
    log_probs = F.log_softmax(mask_invalid(logits, valid), dim=1)
    tangents = log_probs.exp().tan()  # of [0, 1], so finite
    negatives = tangents.masked_fill(not_negative(logits, valid), 0.0).sum(dim=1)
    bounded = negatives / tangents.sum(dim=1) ** (1 - label)
    return -label * log_probs.diagonal() + complementary_weight * bounded  # [eq:active-complementary]
