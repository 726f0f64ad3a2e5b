"""Matrix products in full float32, whatever autocast or TF32 would make of them.

A bfloat16 or TF32 product rounds logits to two or three digits, and the difference between a pair and its hardest
negative drowns in that.
"""

from __future__ import annotations

import torch
from torch import Tensor


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` without autocast and, on a CUDA device, without TF32.

    While compiling, TF32 is left as it is: a process-wide switch cannot be turned inside a graph.
    """
    with torch.autocast(device_type=left.device.type, enabled=False):
        if not left.is_cuda or torch.compiler.is_compiling():
            return left @ right
        matmul = torch.backends.cuda.matmul
        allowed = matmul.allow_tf32
        matmul.allow_tf32 = False
        try:
            return left @ right
        finally:
            matmul.allow_tf32 = allowed
