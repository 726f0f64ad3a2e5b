"""Two networks as one: encodings side by side along the width, and the mean of two similarities.

    S = (σ(a) + σ(b)) / 2,   logit(S) = log(σ(a) + σ(b)) - log(σ(-a) + σ(-b))

with a, b the logits of the two. The logit ranks as the mean does, and is computed without leaving the logarithms, so
that neither very large nor very small similarities become ties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.models.matcher import Encoded


def logit_of_mean(first: Tensor, second: Tensor) -> Tensor:
    """The logit whose sigmoid is the mean of the sigmoids of two logits, exact however large or small both are."""
    likely = torch.logaddexp(F.logsigmoid(first), F.logsigmoid(second))
    unlikely = torch.logaddexp(F.logsigmoid(-first), F.logsigmoid(-second))
    return likely - unlikely


def side_by_side(first: Encoded, second: Encoded) -> Encoded:
    """Two encodings of the same items as one of twice the width; all else is that of the first."""
    return _changed(first, lambda name: torch.cat([getattr(first, name), getattr(second, name)], dim=-1))


def halves(both: Encoded) -> tuple[Encoded, Encoded]:
    """The two encodings that `side_by_side` joined."""

    def half(k: int) -> Encoded:
        return _changed(both, lambda name: getattr(both, name).chunk(2, dim=-1)[k])

    return half(0), half(1)


def _changed(encoded: Encoded, change: Callable[[str], Tensor]) -> Encoded:
    vectors = [name for name in ("local", "pooled") if getattr(encoded, name) is not None]
    changed: dict[str, Any] = {name: change(name) for name in vectors}
    return replace(encoded, **changed)
