"""What queries remember after they have asked, in plain PyTorch; its kernel is in memory_update.py."""

from __future__ import annotations

import torch
from torch import Tensor


def plain_memory_update(
    memory: Tensor, from_memory: Tensor, attention: Tensor, from_contexts: Tensor
) -> Tensor:
    """The next memory (c, Q, d), of inputs like those of `memory_update`."""
    mixed = torch.baddbmm(from_memory, attention.transpose(1, 2).to(from_contexts.dtype), from_contexts)
    gate, output = mixed.chunk(2, dim=-1)
    gate, output = torch.sigmoid(gate), torch.tanh(output)
    return gate * memory + (1 - gate) * output
