"""Triton backend of the graph step, over packed nodes: self-attention, then a linear layer with ReLU.

    q_i = A x_i + c,   out_i = sum_k softmax_k(q_i · x_k) x_k,   over the nodes k of the same image and caption

A program takes one image and one caption. Its nodes are read once; products and softmax stay on chip. In SGR's
last step only the global node is a query, one row a caption. The nodes enter both formulas: in the backward pass the
product with A is added to what the attention's kernel wrote, which saves a pass over their gradient.

    y = max(0, W x + b)

There are hundreds of thousands of short rows: products are cheap, passes over the nodes are not. Forward, bias
and ReLU are fused with the product. Backward, one kernel applies ReLU's mask and sums the gradient of the bias.
Spare rows are computed like all others: with an upstream of 0 they have no influence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sremkit.ops.functional import differentiable_gradients, without_autocast
from sremkit.ops.graph_step import packed_self_attention_reference, relu_linear_reference
from sremkit.ops.packing import Packing
from sremkit.ops.triton.triton_utils import (
    block,
    caption_rows,
    jit,
    precision,
    short_block,
    tl,
    to_contiguous,
    zero_spare_nodes,
)

_ROWS = 16  # at a time
_ROWS_A_PROGRAM = 256


def packed_self_attention(
    nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing, *, only_global: bool = False
) -> Tensor:
    """As `packed_self_attention_reference`; products and result have the dtype of the nodes (n, m + W, s)."""
    return _SelfAttention.apply(nodes, weight, bias, packing, only_global)


def _query_nodes(nodes: Tensor, packing: Packing, only_global: bool) -> Tensor:
    return nodes[:, : packing.num_texts] if only_global else nodes


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing, only_global: bool) -> Tensor:
        x, a, c = to_contiguous(nodes.dtype, nodes, weight, bias)
        query_nodes = _query_nodes(x, packing, only_global)
        with without_autocast(x):
            q = torch.addmm(c, query_nodes.flatten(0, 1), a.T).view(query_nodes.shape)
        out = torch.empty_like(q)
        launch(attend, q, x, (q, x, out), packing)
        if not only_global:
            zero_spare_nodes(packing, out)
        ctx.save_for_backward(nodes, weight, bias, q)
        ctx.packing, ctx.only_global = packing, only_global
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        nodes, weight, bias, q = ctx.saved_tensors
        packing, only_global = ctx.packing, ctx.only_global
        with without_autocast(upstream):
            if torch.is_grad_enabled():
                inputs, constants = (nodes, weight, bias), (packing, only_global)
                return differentiable_gradients(ctx, packed_self_attention_reference, inputs, upstream, *constants)
            g, x, a = to_contiguous(nodes.dtype, upstream, nodes, weight)
            by_q, by_x = torch.empty_like(q), torch.empty_like(x)
            sums = q.new_empty(len(q), packing.num_texts, q.shape[2], dtype=torch.float32)  # of by_q
            launch(attend_back, q, x, (g, q, x, by_q, by_x, sums), packing)
            if only_global:
                zero_spare_nodes(packing, by_x)
                by_x[:, : packing.num_texts].baddbmm_(by_q, a.expand(len(x), -1, -1))
            else:
                zero_spare_nodes(packing, by_q, by_x)
                by_x.flatten(0, 1).addmm_(by_q.flatten(0, 1), a)
            by_weight = by_q.flatten(0, 1).T @ _query_nodes(x, packing, only_global).flatten(0, 1)
        return by_x, by_weight.to(weight.dtype), sums.sum(dim=(0, 1)).to(bias.dtype), None, None


@jit
def _softmax(scores, present):
    """Softmax of each row over the present columns."""
    scores = tl.where(present[None, :], scores, float("-inf"))
    scores = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return scores / tl.sum(scores, axis=1)[:, None]


@jit
def _products(left, right, left_at, right_at, has_left, has_right, sim_dim,
              ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIM: tl.constexpr, BLOCK_S: tl.constexpr,
              PRECISION: tl.constexpr):  # fmt: skip
    """Dot products (ROWS, COLUMNS) of rows of two matrices, BLOCK_S elements at a time."""
    total = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    for start in range(0, SIM, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        inside = s < sim_dim
        x = tl.load(left + left_at[:, None] + s[None, :], mask=has_left[:, None] & inside[None, :], other=0.0)
        y = tl.load(right + right_at[None, :] + s[:, None], mask=has_right[None, :] & inside[:, None], other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION)
    return total


@jit
def _caption(cu_seqlens, num_texts, num_nodes, num_queries, sim_dim, ONLY_GLOBAL: tl.constexpr,
             QUERIES: tl.constexpr, NODES: tl.constexpr):  # fmt: skip
    """Offsets of this program's nodes and queries, and their masks."""
    text = tl.program_id(0)
    image = tl.program_id(1).to(tl.int64)
    rows, count = caption_rows(cu_seqlens, text, num_texts, NODES)
    query_rows, _count = caption_rows(cu_seqlens, text, num_texts, QUERIES)
    has_node = tl.arange(0, NODES) < count
    has_query = tl.arange(0, QUERIES) < (1 if ONLY_GLOBAL else count)
    at, query_at = (image * num_nodes + rows) * sim_dim, (image * num_queries + query_rows) * sim_dim
    return at, query_at, has_node, has_query


@jit
def _attend(
    queries, nodes, out, cu_seqlens, num_texts, num_nodes, num_queries, sim_dim,
    ONLY_GLOBAL: tl.constexpr, QUERIES: tl.constexpr, NODES: tl.constexpr,
    SIM: tl.constexpr, BLOCK_S: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward for a caption of up to NODES nodes."""
    at, query_at, has_node, has_query = _caption(
        cu_seqlens, num_texts, num_nodes, num_queries, sim_dim, ONLY_GLOBAL, QUERIES, NODES
    )
    scores = _products(
        queries, nodes, query_at, at, has_query, has_node, sim_dim, QUERIES, NODES, SIM, BLOCK_S, PRECISION
    )
    edges = _softmax(scores, has_node).to(nodes.dtype.element_ty)
    for start in range(0, SIM, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        inside = s < sim_dim
        x = tl.load(nodes + at[:, None] + s[None, :], mask=has_node[:, None] & inside[None, :], other=0.0)
        attended = tl.dot(edges, x, input_precision=PRECISION)
        tl.store(
            out + query_at[:, None] + s[None, :],
            attended.to(out.dtype.element_ty),
            mask=has_query[:, None] & inside[None, :],
        )


@jit(do_not_specialize=["num_texts", "num_nodes", "num_queries"])
def attend(
    queries, nodes, out, cu_seqlens, num_texts, num_nodes, num_queries, sim_dim,
    ONLY_GLOBAL: tl.constexpr, SHORT: tl.constexpr, NODES: tl.constexpr,
    SIM: tl.constexpr, BLOCK_S: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward: one image and one caption a program."""
    if _num_nodes(cu_seqlens) <= SHORT:
        _attend(
            queries, nodes, out, cu_seqlens, num_texts, num_nodes, num_queries, sim_dim,
            ONLY_GLOBAL, 16 if ONLY_GLOBAL else SHORT, SHORT, SIM, BLOCK_S, PRECISION,
        )  # fmt: skip
    else:
        _attend(
            queries, nodes, out, cu_seqlens, num_texts, num_nodes, num_queries, sim_dim,
            ONLY_GLOBAL, 16 if ONLY_GLOBAL else NODES, NODES, SIM, BLOCK_S, PRECISION,
        )  # fmt: skip


@jit
def _num_nodes(cu_seqlens):
    text = tl.program_id(0)
    return 1 + tl.load(cu_seqlens + text + 1) - tl.load(cu_seqlens + text)


@jit
def _attend_back(
    upstream, queries, nodes, by_queries, by_nodes, sums, cu_seqlens, num_texts, num_nodes, num_queries, sim_dim,
    ONLY_GLOBAL: tl.constexpr, QUERIES: tl.constexpr, NODES: tl.constexpr,
    SIM: tl.constexpr, BLOCK_S: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward for a caption of up to NODES nodes."""
    at, query_at, has_node, has_query = _caption(
        cu_seqlens, num_texts, num_nodes, num_queries, sim_dim, ONLY_GLOBAL, QUERIES, NODES
    )
    scores = _products(
        queries, nodes, query_at, at, has_query, has_node, sim_dim, QUERIES, NODES, SIM, BLOCK_S, PRECISION
    )
    by_edges = _products(
        upstream, nodes, query_at, at, has_query, has_node, sim_dim, QUERIES, NODES, SIM, BLOCK_S, PRECISION
    )
    edges = _softmax(scores, has_node)
    by_scores = edges * (by_edges - tl.sum(edges * by_edges, axis=1)[:, None])
    edges, by_scores = edges.to(nodes.dtype.element_ty), by_scores.to(nodes.dtype.element_ty)
    sums += (tl.program_id(1).to(tl.int64) * num_texts + tl.program_id(0)) * sim_dim
    for start in range(0, SIM, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        inside = s < sim_dim
        places, mask = at[:, None] + s[None, :], has_node[:, None] & inside[None, :]
        query_places, query_mask = query_at[:, None] + s[None, :], has_query[:, None] & inside[None, :]
        x = tl.load(nodes + places, mask=mask, other=0.0)
        q = tl.load(queries + query_places, mask=query_mask, other=0.0)
        g = tl.load(upstream + query_places, mask=query_mask, other=0.0)
        by_q = tl.dot(by_scores, x, input_precision=PRECISION)  # 0 for absent queries
        tl.store(by_queries + query_places, by_q.to(by_queries.dtype.element_ty), mask=query_mask)
        tl.store(sums + s, tl.sum(by_q, axis=0), mask=inside)
        by_x = tl.dot(tl.trans(edges), g, input_precision=PRECISION)
        by_x = tl.dot(tl.trans(by_scores), q, by_x, input_precision=PRECISION)
        tl.store(by_nodes + places, by_x.to(by_nodes.dtype.element_ty), mask=mask)


@jit(do_not_specialize=["num_texts", "num_nodes", "num_queries"])
def attend_back(
    upstream, queries, nodes, by_queries, by_nodes, sums, cu_seqlens, num_texts, num_nodes, num_queries, sim_dim,
    ONLY_GLOBAL: tl.constexpr, SHORT: tl.constexpr, NODES: tl.constexpr,
    SIM: tl.constexpr, BLOCK_S: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward: every node belongs to one program, so each gradient is written once.

    `sums` are the sums of the queries' gradients, one row a program.
    """
    if _num_nodes(cu_seqlens) <= SHORT:
        _attend_back(
            upstream, queries, nodes, by_queries, by_nodes, sums, cu_seqlens,
            num_texts, num_nodes, num_queries, sim_dim,
            ONLY_GLOBAL, 16 if ONLY_GLOBAL else SHORT, SHORT, SIM, BLOCK_S, PRECISION,
        )  # fmt: skip
    else:
        _attend_back(
            upstream, queries, nodes, by_queries, by_nodes, sums, cu_seqlens,
            num_texts, num_nodes, num_queries, sim_dim,
            ONLY_GLOBAL, 16 if ONLY_GLOBAL else NODES, NODES, SIM, BLOCK_S, PRECISION,
        )  # fmt: skip


def launch(kernel: Any, q: Tensor, x: Tensor, tensors: tuple[Tensor, ...], packing: Packing) -> None:
    """Run a kernel over all captions and images."""
    num_nodes, sim_dim, itemsize = block(1 + packing.max_seqlen), q.shape[2], q.element_size()
    kernel[(packing.num_texts, len(q))](
        *tensors, packing.cu_seqlens, packing.num_texts, x.shape[1], q.shape[1], sim_dim,
        ONLY_GLOBAL=q.shape[1] == packing.num_texts, SHORT=short_block(num_nodes), NODES=num_nodes,
        SIM=block(sim_dim), BLOCK_S=min(block(sim_dim), _columns(num_nodes, itemsize)),
        PRECISION=precision(q.dtype), **_schedule(num_nodes, itemsize),
    )  # fmt: skip


def _columns(num_nodes: int, itemsize: int) -> int:
    """Columns at a time: as many as several blocks of them fit a multiprocessor's shared memory."""
    return 32 if itemsize == 4 else 128 if num_nodes <= 64 else 64


def _schedule(num_nodes: int, itemsize: int) -> dict[str, int]:
    if num_nodes > 32:
        return {"num_warps": 8, "num_stages": 2 if num_nodes <= 64 else 1}
    return {"num_warps": 2 if itemsize == 2 else 4, "num_stages": 2}


def relu_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU(W x + b), (..., t), of rows `x` (..., s), in the dtype of `x`; `weight` (t, s)."""
    return _ReluLinear.apply(x, weight, bias)


def gate(upstream: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient before ReLU from the one after it, as rows (..., s); and its sums (s,) in float32."""
    rows = upstream.flatten(0, -2).contiguous()
    num_rows, width = rows.shape
    gated = torch.empty_like(rows)
    parts = rows.new_empty(-(-num_rows // _ROWS_A_PROGRAM), width, dtype=torch.float32)
    if parts.numel():
        gate_and_sum[(len(parts),)](
            rows, out.flatten(0, -2).contiguous(), gated, parts, num_rows, width,
            ROWS=_ROWS, ROWS_A_PROGRAM=_ROWS_A_PROGRAM, WIDTH=block(width), num_warps=4, num_stages=1,
        )  # fmt: skip
    return gated, parts.sum(dim=0)


@jit(do_not_specialize=["num_rows"])
def gate_and_sum(
    upstream, out, gated, parts, num_rows, width,
    ROWS: tl.constexpr, ROWS_A_PROGRAM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of ROWS_A_PROGRAM rows before ReLU, and its sums."""
    first = tl.program_id(0) * ROWS_A_PROGRAM
    column = tl.arange(0, WIDTH)
    total = tl.full((ROWS, WIDTH), 0.0, tl.float32)  # summed over its rows once, at the end
    for start in range(0, ROWS_A_PROGRAM, ROWS):
        row = first + start + tl.arange(0, ROWS)
        mask = (row < num_rows)[:, None] & (column < width)[None, :]
        places = row.to(tl.int64)[:, None] * width + column[None, :]
        g = tl.load(upstream + places, mask=mask, other=0.0)
        y = tl.load(out + places, mask=mask, other=0.0)
        g = tl.where(y > 0, g, tl.zeros_like(g))
        tl.store(gated + places, g, mask=mask)
        total += g.to(tl.float32)
    part = tl.program_id(0).to(tl.int64)
    tl.store(parts + part * width + column, tl.sum(total, axis=0), mask=column < width)


class _ReluLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        w, b = to_contiguous(x.dtype, weight, bias)
        rows = x.flatten(0, -2)
        with without_autocast(x):
            if x.is_cuda and hasattr(torch, "_addmm_activation"):
                out = torch._addmm_activation(b, rows, w.T, use_gelu=False)
            else:
                out = torch.addmm(b, rows, w.T).relu_()
        out = out.unflatten(0, x.shape[:-1])
        ctx.save_for_backward(x, weight, bias, out)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, out = ctx.saved_tensors
        with without_autocast(upstream):
            if torch.is_grad_enabled():
                return differentiable_gradients(ctx, relu_linear_reference, (x, weight, bias), upstream)
            g, by_bias = gate(upstream, out)
            by_x = (g @ weight.to(x.dtype)).unflatten(0, x.shape[:-1]) if ctx.needs_input_grad[0] else None
            by_weight = g.T @ x.flatten(0, -2)
        return by_x, by_weight.to(weight.dtype), by_bias.to(bias.dtype)
