"""Dropout with random numbers that are cheap on the processor and independent on a GPU.

On the processor PyTorch draws one number after the other for every element, which takes as long as a matrix product.
Here four elements share a draw; sixteen bits give the share that is dropped to one part in 65,536.

On a GPU its dropout of half precision uses eight random numbers a thread and moves on by four, so half of a mask comes
again in the next one. Two towers then drop the same places of the same pair: pairs can be told by their holes, the loss
falls to 0 and nothing is learnt. Drawn in float32, masks are independent.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sremkit.models.similarity import full_precision

_VALUES = 1 << 16
_WORTHWHILE = 100_000  # elements; the library's own takes a millisecond for so many


class Dropout(nn.Dropout):
    """`nn.Dropout`, but faster for large inputs on a CPU, and drawn in float32 elsewhere; compiled, as it is."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or torch.compiler.is_compiling():
            return super().forward(x)
        if x.device.type != "cpu":
            return super().forward(full_precision(x)).to(x.dtype)
        dropped = round(self.p * _VALUES)
        if x.numel() < _WORTHWHILE or not 0 < dropped < _VALUES:
            return super().forward(x)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
        kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - _VALUES // 2
        return x * kept.to(x.dtype).mul_(_VALUES / (_VALUES - dropped))
