"""Gradients of gradients for a fused function: by way of its plain twin.

Methods that learn their own weights differentiate through a training step. Their backward passes are
themselves recorded, and then a kernel, which autograd cannot look into, gives way to the plain twin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def recorded_gradients(
    plain: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients by the inputs that are `needed`, through which autograd can go back once more.

    Computed in full precision: a kernel takes what comes in several number formats, its twin wants one.
    """
    # By way of aliases: an input may have been computed from another one, whose gradient must not count that.
    aliases = [x.view_as(x) for x in inputs]
    wanted = [x for x, need in zip(aliases, needed, strict=True) if need]
    with torch.autocast(device_type=upstream.device.type, enabled=False):
        result = plain(*(x.float() if x.dtype in (torch.bfloat16, torch.float16) else x for x in aliases))
        upstream = upstream.to(result.dtype)
        found = iter(torch.autograd.grad(result, wanted, upstream, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needed]
