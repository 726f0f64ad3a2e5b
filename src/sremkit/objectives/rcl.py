"""Complementary contrastive losses: of RCL, from negatives alone, and of CRCL, where a soft label adds the pair.

    P = softmax(s / temperature) over the row,  L = mean_i sum_{j != i} phi(P_ij)                   [eq:rcl]

    log: -ln(1 - x)    tan: tan x    abs: x    exp: exp(-(1 - x))    gce: (1 - (1 - x)^q) / q

    l_i = -y_i log P_ii + complementary_weight sum_{j != i} tan P_ij / (sum_j tan P_ij)^(1 - y_i)
                                                                                    [eq:active-complementary]

y_i in [0, 1] is the label of pair i. At y_i = 1 the loss of CRCL is cross-entropy and the tan form of RCL; at y_i = 0
nothing is pulled, and the rest lies between 0 and 1, so that a wrong pair has a bounded effect. Pass the transposed
scores for the other direction. RCL's log form equals SREM's normalized complementary loss at sharpness 0.
References: Hu et al., Cross-Modal Retrieval With Partially Mismatched Pairs, TPAMI 2023; Qin et al., Cross-modal Active
Complementary Learning with Self-refining Correspondence, NeurIPS 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.objectives.complementary import log_complement
from sremkit.objectives.logits import as_logits, mask_invalid, not_negative

Form = Literal["log", "tan", "abs", "exp", "gce"]


def rcl(
    scores: Tensor, *, temperature: float, form: Form = "log", power: float = 0.5, valid: Tensor | None = None
) -> Tensor:
    """The loss of the rows.

    Args:
        scores: (b, b) similarities; in the published method sigmoid scores at temperature 0.05.
        power: q of the gce form.
        valid: (b, b) bool, True where a candidate counts; for repeated images.
    """
    if form not in get_args(Form):
        raise ValueError(f"form must be one of {', '.join(get_args(Form))}; got '{form}'")
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    logits = as_logits(scores) / temperature
    if form == "log":
        per_negative = -log_complement(logits, valid=valid)  # exact even where a negative has P = 1
    else:
        probability = mask_invalid(logits, valid).softmax(dim=1)
        per_negative = _phi(form, power)(probability).masked_fill(not_negative(logits, valid), 0.0)
    return per_negative.sum(dim=1).mean()  # [eq:rcl]


def _phi(form: Form, power: float) -> Callable[[Tensor], Tensor]:
    return {
        "tan": torch.tan,
        "abs": lambda p: p,
        "exp": lambda p: torch.exp(p - 1),
        # The slope of the power is infinite at P = 1, so 1 - P is bounded below by one rounding step.
        "gce": lambda p: (1 - (1 - p).clamp_min(torch.finfo(p.dtype).eps) ** power) / power,
    }[form]


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
