"""Unit vectors, cosines, and the learned line that turns a similarity into a logit."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

EPSILON = 1e-8


def full_precision(x: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def unit(x: Tensor, dim: int = -1) -> Tensor:
    """x / (‖x‖ + 1e-8) in full precision; a zero vector stays zero."""
    x = full_precision(x)
    # The floor changes no length that matters; it keeps first and second derivatives finite at zero.
    square = x.square().sum(dim=dim, keepdim=True).clamp_min(EPSILON**4)
    return x / (square.sqrt() + EPSILON)


def without_autocast(x: Tensor) -> torch.autocast:
    """Context in which mixed precision is off on the device of `x`."""
    return torch.autocast(device_type=x.device.type, enabled=False)


class LearnedLogit(nn.Module):
    """logit = scale · similarity + bias, both learned; the scale is stored as its logarithm.

    A ranking does not see this line, but energies and sigmoids do. At the start a similarity of `neutral`
    has the logit 0, so with the default scale of 10 a cosine of 0.9 starts at +4 and one of 0.1 at -4.
    """

    def __init__(self, *, scale: float = 10.0, neutral: float = 0.5) -> None:
        super().__init__()
        if scale <= 0:
            raise ValueError(f"scale must be positive, got {scale}")
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.bias = nn.Parameter(torch.tensor(-scale * neutral))

    def forward(self, similarity: Tensor) -> Tensor:
        return self.log_scale.exp() * full_precision(similarity) + self.bias


def all_cosines(image_emb: Tensor, text_emb: Tensor) -> Tensor:
    """Dot products of unit vectors, all images with all texts: (n, m), never in half precision."""
    with without_autocast(image_emb):
        return full_precision(image_emb) @ full_precision(text_emb).T
