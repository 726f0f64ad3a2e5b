"""IMRAM's gated memory update, for every query with every item that it attends to.

x = (projected memory) + aᵀ (projected contexts),   g = σ(first half of x),   o = tanh(second half of x)
out = g ⊙ memory + (1 - g) ⊙ o
"""

from __future__ import annotations

import torch
from torch import Tensor


def memory_update(
    memory: Tensor, projected_memory: Tensor, attention: Tensor, projected_contexts: Tensor, *, with_kernel: bool
) -> Tensor:
    """The next memory (c, Q, d).

    Args:
        memory: (c, Q, d), or (1, Q, d) while it is still the same for all items.
        projected_memory: (c, Q, 2d), or (1, Q, 2d) likewise; of its dtype are the products and the result.
        attention: (c, k, Q)
        projected_contexts: (c, k, 2d)
        with_kernel: for packed queries. Decided by the caller, because the backward pass may recompute this with
            another backend set.
    """
    inputs = (memory, projected_memory, attention, projected_contexts)
    if with_kernel:
        from sremkit.ops.triton.memory_update import memory_update_kernel

        return memory_update_kernel(*inputs)
    return memory_update_reference(*inputs)


def memory_update_reference(
    memory: Tensor, projected_memory: Tensor, attention: Tensor, projected_contexts: Tensor
) -> Tensor:
    """The formula in plain PyTorch."""
    mixed = torch.baddbmm(projected_memory, attention.transpose(1, 2).to(projected_contexts.dtype), projected_contexts)
    gate, output = mixed.chunk(2, dim=-1)
    gate, output = torch.sigmoid(gate), torch.tanh(output)
    return gate * memory + (1 - gate) * output
