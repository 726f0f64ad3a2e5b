"""RCL: robust complementary contrastive learning. Only negative matches are used, no pair is ever believed.

    P = softmax(s / temperature) over the row,  L = mean_i sum_{j != i} phi(P_ij)                   [eq:rcl]

    log: -ln(1 - x)    tan: tan x    abs: x    exp: exp(-(1 - x))    gce: (1 - (1 - x)^q) / q

Pass the transposed scores for the other direction. The log form is SREM's normalised complementary loss at
sharpness 0. Reference: Hu et al., Cross-Modal Retrieval With Partially Mismatched Pairs, TPAMI 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from sremkit.objectives.candidates import as_logits, diagonal_mask, keep_valid
from sremkit.objectives.complementary import log_not_chosen

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
        per_negative = -log_not_chosen(logits, valid=valid)  # exact even where a negative takes all
    else:
        left_out = diagonal_mask(logits) if valid is None else diagonal_mask(logits) | ~valid
        per_negative = _form(form, power)(keep_valid(logits, valid).softmax(dim=1)).masked_fill(left_out, 0.0)
    return per_negative.sum(dim=1).mean()  # [eq:rcl]


def _form(form: Form, power: float) -> Callable[[Tensor], Tensor]:
    return {
        "tan": torch.tan,
        "abs": lambda p: p,
        "exp": lambda p: torch.exp(p - 1),
        # A power of 0 has an infinite slope, so a negative that takes all is held one rounding step below 1.
        "gce": lambda p: (1 - (1 - p).clamp_min(torch.finfo(p.dtype).eps) ** power) / power,
    }[form]
