"""Triton backend of the memory update.

The sums x are twice as wide as the embeddings, one for each query and item: in plain PyTorch they pass
through memory ten times. Here they are computed where they are used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sremkit.ops.functional import differentiable_gradients
from sremkit.ops.memory_update import memory_update_reference
from sremkit.ops.triton.triton_utils import block, jit, precision, tl, to_contiguous

_QUERIES, _COLUMNS = 64, 64
_WARPS = 4


def memory_update_kernel(
    memory: Tensor, projected_memory: Tensor, attention: Tensor, projected_contexts: Tensor
) -> Tensor:
    """As `memory_update`, in the dtype of `projected_memory`."""
    return _MemoryUpdate.apply(memory, projected_memory, attention, projected_contexts)


@jit
def _places(item, q, column, num_queries, width, SHARED: tl.constexpr):
    """Offsets of a tile in a tensor (c, Q, width), or (1, Q, width) if it is shared by all items."""
    row = q.to(tl.int64) if SHARED else item * num_queries + q
    return row[:, None] * width + column[None, :]


@jit
def _tile(
    memory, projected_memory, attention, projected_contexts, num_queries, num_contexts, width,
    MEMORY_SHARED: tl.constexpr, PROJECTED_SHARED: tl.constexpr,
    QUERIES: tl.constexpr, COLUMNS: tl.constexpr, CONTEXTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """This program's item, queries, columns and their mask; the memory, gate and output of its tile."""
    item = tl.program_id(2).to(tl.int64)
    q = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (q < num_queries)[:, None] & (column < width)[None, :]
    k = tl.arange(0, CONTEXTS)
    has_context = k < num_contexts
    a = tl.load(
        attention + (item * num_contexts + k)[None, :] * num_queries + q[:, None],
        mask=has_context[None, :] & (q < num_queries)[:, None],
        other=0.0,
    )
    places = (item * num_contexts + k)[:, None] * (2 * width) + column[None, :]
    inside = has_context[:, None] & (column < width)[None, :]
    gate = tl.dot(a, tl.load(projected_contexts + places, mask=inside, other=0.0), input_precision=PRECISION)
    output = tl.dot(a, tl.load(projected_contexts + places + width, mask=inside, other=0.0), input_precision=PRECISION)
    own = _places(item, q, column, num_queries, 2 * width, PROJECTED_SHARED)
    gate += tl.load(projected_memory + own, mask=mask, other=0.0).to(tl.float32)
    output += tl.load(projected_memory + own + width, mask=mask, other=0.0).to(tl.float32)
    own = _places(item, q, column, num_queries, width, MEMORY_SHARED)
    m = tl.load(memory + own, mask=mask, other=0.0).to(tl.float32)
    return item, q, column, mask, m, tl.sigmoid(gate), 2.0 * tl.sigmoid(2.0 * output) - 1.0


@jit(do_not_specialize=["num_queries"])
def update_forward(
    memory, projected_memory, attention, projected_contexts, out, num_queries, num_contexts, width,
    MEMORY_SHARED: tl.constexpr, PROJECTED_SHARED: tl.constexpr,
    QUERIES: tl.constexpr, COLUMNS: tl.constexpr, CONTEXTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward: one item, QUERIES queries and COLUMNS columns a program."""
    item, q, column, mask, m, gate, output = _tile(
        memory, projected_memory, attention, projected_contexts, num_queries, num_contexts, width,
        MEMORY_SHARED, PROJECTED_SHARED, QUERIES, COLUMNS, CONTEXTS, PRECISION,
    )  # fmt: skip
    places = _places(item, q, column, num_queries, width, False)
    tl.store(out + places, (output + gate * (m - output)).to(out.dtype.element_ty), mask=mask)


@jit(do_not_specialize=["num_queries"])
def update_backward(
    upstream, memory, projected_memory, attention, projected_contexts, by_memory, by_mixed,
    num_queries, num_contexts, width,
    MEMORY_SHARED: tl.constexpr, PROJECTED_SHARED: tl.constexpr,
    QUERIES: tl.constexpr, COLUMNS: tl.constexpr, CONTEXTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward: the gradients of the memory and of the sums x, separately for each item."""
    item, q, column, mask, m, gate, output = _tile(
        memory, projected_memory, attention, projected_contexts, num_queries, num_contexts, width,
        MEMORY_SHARED, PROJECTED_SHARED, QUERIES, COLUMNS, CONTEXTS, PRECISION,
    )  # fmt: skip
    places = _places(item, q, column, num_queries, width, False)
    up = tl.load(upstream + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(by_memory + places, (up * gate).to(by_memory.dtype.element_ty), mask=mask)
    by_gate = up * (m - output) * gate * (1.0 - gate)
    by_output = up * (1.0 - gate) * (1.0 - output * output)
    places = _places(item, q, column, num_queries, 2 * width, False)
    tl.store(by_mixed + places, by_gate.to(by_mixed.dtype.element_ty), mask=mask)
    tl.store(by_mixed + places + width, by_output.to(by_mixed.dtype.element_ty), mask=mask)


class _MemoryUpdate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, memory: Tensor, projected_memory: Tensor, attention: Tensor, projected_contexts: Tensor
    ) -> Tensor:
        dtype = projected_memory.dtype
        m, x = memory.contiguous(), projected_memory.contiguous()
        a, v = to_contiguous(dtype, attention, projected_contexts)
        (c, _, num_queries), width = a.shape, m.shape[2]
        out = torch.empty(c, num_queries, width, dtype=dtype, device=m.device)
        if out.numel():
            update_forward[_grid(c, num_queries, width)](m, x, a, v, out, **_sizes(m, x, a))
        ctx.save_for_backward(memory, projected_memory, attention, projected_contexts)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_gradients(ctx, memory_update_reference, inputs, upstream)
        memory, projected_memory, attention, projected_contexts = inputs
        dtype = projected_memory.dtype
        m, x = memory.contiguous(), projected_memory.contiguous()
        a, v = to_contiguous(dtype, attention, projected_contexts)
        (c, _, num_queries), width = a.shape, m.shape[2]
        by_m, by_mixed = upstream.new_empty(upstream.shape), x.new_empty(c, num_queries, 2 * width)
        if by_m.numel():
            update_backward[_grid(c, num_queries, width)](
                upstream.contiguous(), m, x, a, v, by_m, by_mixed, **_sizes(m, x, a)
            )
        return (
            _reduced(by_m, memory),
            _reduced(by_mixed, projected_memory),
            (v @ by_mixed.transpose(1, 2)).to(attention.dtype),
            (a @ by_mixed).to(projected_contexts.dtype),
        )


def _reduced(gradient: Tensor, like: Tensor) -> Tensor:
    """A gradient (c, Q, ...), summed over the items if the tensor is shared by all of them."""
    if len(like) != len(gradient):
        return gradient.sum(dim=0, keepdim=True, dtype=like.dtype)
    return gradient.to(like.dtype)


def _grid(num_items: int, num_queries: int, width: int) -> tuple[int, int, int]:
    return -(-width // _COLUMNS), -(-num_queries // _QUERIES), num_items


def _sizes(memory: Tensor, projected_memory: Tensor, attention: Tensor) -> dict[str, Any]:
    c, num_contexts, num_queries = attention.shape
    return dict(
        MEMORY_SHARED=len(memory) != c, PROJECTED_SHARED=len(projected_memory) != c,
        num_queries=num_queries, num_contexts=num_contexts, width=memory.shape[2],
        QUERIES=_QUERIES, COLUMNS=_COLUMNS, CONTEXTS=block(num_contexts),
        PRECISION=precision(projected_memory.dtype), num_warps=_WARPS, num_stages=1,
    )  # fmt: skip
