"""RCL: robust complementary contrastive learning, from negative pairs alone.

    P = softmax(s / temperature) over the row,  L = mean_i sum_{j != i} phi(P_ij)                   [eq:rcl]

    log: -ln(1 - x)    tan: tan x    abs: x    exp: exp(-(1 - x))    gce: (1 - (1 - x)^q) / q

Pass the transposed scores for the other direction. The log form equals SREM's normalized complementary loss at
sharpness 0. Reference: Hu et al., Cross-Modal Retrieval With Partially Mismatched Pairs, TPAMI 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
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
