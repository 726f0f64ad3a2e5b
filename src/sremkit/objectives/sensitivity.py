"""Sensitivity of the model to a pair: certain pairs weigh more.

    w_i = 1 - e_i * 1[margin - S_ii + S_i,phi(i) > 0],   S = sigmoid(F)                      [eq:weight]

phi(i) is the hardest negative of row i. A pair that already leads it by the margin has weight 1, and the
hinge then leaves it alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sremkit.objectives.candidates import as_logits, hardest_negative
from sremkit.objectives.entropy import normalized_entropy


def sensitivity(logits: Tensor, *, margin: float, valid: Tensor | None = None) -> Tensor:
    """Weight (b,) in [0, 1] from the entropy of each row; the ranking loss of the *other* direction uses it.

    It carries no gradient, as the paper's derivative of the ranking loss shows. With one, the loss could be
    lowered by making a pair look uncertain.
    """
    logits = as_logits(logits.detach())
    hard_index, _ = hardest_negative(logits, valid)  # a row without a negative has entropy 0, so weight 1
    hard = logits.gather(1, hard_index[:, None]).squeeze(1)
    unsatisfied = margin - logits.diagonal().sigmoid() + hard.sigmoid() > 0
    return 1 - torch.where(unsatisfied, normalized_entropy(logits, valid=valid), 0.0)  # [eq:weight]
