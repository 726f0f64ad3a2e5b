"""What queries remember after they have asked, for every query with every item that it asked.

    x = (from memory) + aᵀ (from contexts),   g = σ(x's first half),   o = tanh(x's second half)
    out = g ⊙ memory + (1 - g) ⊙ o

The sums x are twice as wide as the embeddings, one for each query and item: in plain PyTorch they go through memory ten
times. Here they are made where they are used, once forward and once more in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sremkit.kernels.language import block, in_format, jit, precision, tl
from sremkit.kernels.plain_memory import plain_memory_update
from sremkit.kernels.twice import recorded_gradients

_QUERIES, _COLUMNS = 64, 64
_WARPS = 4


def memory_update(memory: Tensor, from_memory: Tensor, attention: Tensor, from_contexts: Tensor) -> Tensor:
    """The next memory (c, Q, d) in the number format of `from_memory`, by kernels.

    Args:
        memory: (c, Q, d), or (1, Q, d) while it is still the same for all items.
        from_memory: (c, Q, 2d), or (1, Q, 2d) likewise.
        attention: (c, k, Q)
        from_contexts: (c, k, 2d)
    """
    return _MemoryUpdate.apply(memory, from_memory, attention, from_contexts)


@jit
def _places(item, q, column, num_queries, width, SHARED: tl.constexpr):
    """Where a tile lies in numbers (c, Q, width), or (1, Q, width) if they are shared."""
    row = q.to(tl.int64) if SHARED else item * num_queries + q
    return row[:, None] * width + column[None, :]


@jit
def _tile(
    memory, from_memory, attention, from_contexts, num_queries, num_contexts, width,
    MEMORY_SHARED: tl.constexpr, FROM_SHARED: tl.constexpr,
    QUERIES: tl.constexpr, COLUMNS: tl.constexpr, CONTEXTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Where this program's tile is (item, queries, columns, which of them there are); its memory, gate and output."""
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
    gate = tl.dot(a, tl.load(from_contexts + places, mask=inside, other=0.0), input_precision=PRECISION)
    output = tl.dot(
        a, tl.load(from_contexts + places + width, mask=inside, other=0.0), input_precision=PRECISION
    )
    own = _places(item, q, column, num_queries, 2 * width, FROM_SHARED)
    gate += tl.load(from_memory + own, mask=mask, other=0.0).to(tl.float32)
    output += tl.load(from_memory + own + width, mask=mask, other=0.0).to(tl.float32)
    own = _places(item, q, column, num_queries, width, MEMORY_SHARED)
    m = tl.load(memory + own, mask=mask, other=0.0).to(tl.float32)
    return item, q, column, mask, m, tl.sigmoid(gate), 2.0 * tl.sigmoid(2.0 * output) - 1.0


@jit(do_not_specialize=["num_queries"])
def remember(
    memory, from_memory, attention, from_contexts, out, num_queries, num_contexts, width,
    MEMORY_SHARED: tl.constexpr, FROM_SHARED: tl.constexpr,
    QUERIES: tl.constexpr, COLUMNS: tl.constexpr, CONTEXTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward: one item, QUERIES queries and COLUMNS columns a program."""
    item, q, column, mask, m, gate, output = _tile(
        memory, from_memory, attention, from_contexts, num_queries, num_contexts, width,
        MEMORY_SHARED, FROM_SHARED, QUERIES, COLUMNS, CONTEXTS, PRECISION,
    )  # fmt: skip
    places = _places(item, q, column, num_queries, width, False)
    tl.store(out + places, (output + gate * (m - output)).to(out.dtype.element_ty), mask=mask)


@jit(do_not_specialize=["num_queries"])
def remember_back(
    upstream, memory, from_memory, attention, from_contexts, by_memory, by_mixed, num_queries, num_contexts, width,
    MEMORY_SHARED: tl.constexpr, FROM_SHARED: tl.constexpr,
    QUERIES: tl.constexpr, COLUMNS: tl.constexpr, CONTEXTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward: the gradients by the memory and by the sums x, each item's own."""
    item, q, column, mask, m, gate, output = _tile(
        memory, from_memory, attention, from_contexts, num_queries, num_contexts, width,
        MEMORY_SHARED, FROM_SHARED, QUERIES, COLUMNS, CONTEXTS, PRECISION,
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
        ctx: Any, memory: Tensor, from_memory: Tensor, attention: Tensor, from_contexts: Tensor
    ) -> Tensor:
        dtype = from_memory.dtype
        m, x = memory.contiguous(), from_memory.contiguous()
        a, v = in_format(dtype, attention, from_contexts)
        (c, _, num_queries), width = a.shape, m.shape[2]
        out = torch.empty(c, num_queries, width, dtype=dtype, device=m.device)
        if out.numel():
            remember[_grid(c, num_queries, width)](m, x, a, v, out, **_sizes(m, x, a))
        ctx.save_for_backward(memory, from_memory, attention, from_contexts)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(recorded_gradients(plain_memory_update, inputs, upstream, ctx.needs_input_grad))
        memory, from_memory, attention, from_contexts = inputs
        dtype = from_memory.dtype
        m, x = memory.contiguous(), from_memory.contiguous()
        a, v = in_format(dtype, attention, from_contexts)
        (c, _, num_queries), width = a.shape, m.shape[2]
        by_m, by_mixed = upstream.new_empty(upstream.shape), x.new_empty(c, num_queries, 2 * width)
        if by_m.numel():
            remember_back[_grid(c, num_queries, width)](
                upstream.contiguous(), m, x, a, v, by_m, by_mixed, **_sizes(m, x, a)
            )
        return (
            _added_up(by_m, memory),
            _added_up(by_mixed, from_memory),
            (v @ by_mixed.transpose(1, 2)).to(attention.dtype),
            (a @ by_mixed).to(from_contexts.dtype),
        )


def _added_up(gradient: Tensor, like: Tensor) -> Tensor:
    """A gradient (c, Q, ...) by what has that shape, or is one for all items."""
    if len(like) != len(gradient):
        return gradient.sum(dim=0, keepdim=True, dtype=like.dtype)
    return gradient.to(like.dtype)


def _grid(num_items: int, num_queries: int, width: int) -> tuple[int, int, int]:
    return -(-width // _COLUMNS), -(-num_queries // _QUERIES), num_items


def _sizes(memory: Tensor, from_memory: Tensor, attention: Tensor) -> dict[str, Any]:
    c, num_contexts, num_queries = attention.shape
    return {
        "MEMORY_SHARED": len(memory) != c,
        "FROM_SHARED": len(from_memory) != c,
        "num_queries": num_queries,
        "num_contexts": num_contexts,
        "width": memory.shape[2],
        "QUERIES": _QUERIES,
        "COLUMNS": _COLUMNS,
        "CONTEXTS": block(num_contexts),
        "PRECISION": precision(from_memory.dtype),
        "num_warps": _WARPS,
        "num_stages": 1,
    }
