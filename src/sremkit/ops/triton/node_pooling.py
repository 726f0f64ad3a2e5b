"""Triton backend of node scores and weighted sums of nodes, over packed captions: one read of the nodes each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sremkit.ops.functional import differentiable_gradients
from sremkit.ops.node_pooling import packed_scores_reference, packed_sum_reference
from sremkit.ops.packing import Packing
from sremkit.ops.triton.triton_utils import block, jit, tl, zero_spare_nodes

# A program is a single warp, whose threads hold whole columns: sums over nodes need no synchronisation.
_WARPS = 1
_SUM_ROWS = 8  # nodes at a time
_SCORE_ROWS, _SCORE_ROWS_BACK = 8, 4  # backward there is more to hold for each
_IMAGES = 4  # of a program in the scores' backward pass, which writes one row of the weight's gradient


def packed_scores(nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
    """Scores (n, m, 1 + max_seqlen) in float32 of nodes (n, m + W, s), 0 where a caption has none; and the nodes."""
    return _PackedScores.apply(nodes, weight, bias, packing)


def packed_sum(weights: Tensor, nodes: Tensor, packing: Packing) -> Tensor:
    """Sums (n, m, s) in float32 of nodes (n, m + W, s) with padded weights (n, m, 1 + max_seqlen)."""
    return _PackedSum.apply(weights, nodes, packing)


@jit(do_not_specialize=["num_texts", "num_nodes", "max_nodes"])
def score_forward(
    nodes, weight, bias, out, cu_seqlens, num_texts, num_nodes, max_nodes, sim_dim,
    ROWS: tl.constexpr, SIM: tl.constexpr,
):  # fmt: skip
    """Forward: one image and one caption a program, ROWS nodes at a time."""
    text = tl.program_id(0)
    image = tl.program_id(1).to(tl.int64)
    s = tl.arange(0, SIM)
    has_sim = s < sim_dim
    first = tl.load(cu_seqlens + text)
    count = 1 + tl.load(cu_seqlens + text + 1) - first
    f = tl.load(weight + s, mask=has_sim, other=0.0).to(tl.float32)
    b = tl.load(bias).to(tl.float32)
    pair = image * num_texts + text
    start = 0
    while start < max_nodes:
        k = start + tl.arange(0, ROWS)
        has_node = k < count
        row = tl.where(k == 0, text, num_texts + first + k - 1)
        x = tl.load(
            nodes + (image * num_nodes + row)[:, None] * sim_dim + s[None, :],
            mask=has_node[:, None] & has_sim[None, :],
            other=0.0,
        )
        score = tl.sum(x.to(tl.float32) * f[None, :], axis=1) + b
        tl.store(out + pair * max_nodes + k, tl.where(has_node, score, 0.0), mask=k < max_nodes)
        start += ROWS


@jit(do_not_specialize=["num_texts", "num_nodes", "max_nodes", "num_images"])
def score_backward(
    by_scores, upstream, nodes, weight, by_nodes, by_weight, by_bias, cu_seqlens,
    num_texts, num_nodes, max_nodes, num_images, sim_dim,
    HAS_UPSTREAM: tl.constexpr, IMAGES: tl.constexpr, ROWS: tl.constexpr, SIM: tl.constexpr,
):  # fmt: skip
    """Backward: IMAGES images and one caption a program.

    `upstream` is the gradient of the returned nodes, if they were used.
    """
    text = tl.program_id(0)
    s = tl.arange(0, SIM)
    has_sim = s < sim_dim
    first = tl.load(cu_seqlens + text)
    count = 1 + tl.load(cu_seqlens + text + 1) - first
    f = tl.load(weight + s, mask=has_sim, other=0.0).to(tl.float32)
    by_f = tl.full((ROWS, SIM), 0.0, tl.float32)  # summed over its rows once, at the end
    by_b = tl.full((ROWS,), 0.0, tl.float32)
    for step in range(0, IMAGES):
        image = tl.program_id(1).to(tl.int64) * IMAGES + step
        start = 0
        while start < count:
            k = start + tl.arange(0, ROWS)
            has_node = (k < count) & (image < num_images)
            row = tl.where(k == 0, text, num_texts + first + k - 1)
            places = (image * num_nodes + row)[:, None] * sim_dim + s[None, :]
            mask = has_node[:, None] & has_sim[None, :]
            pair = image * num_texts + text
            d = tl.load(by_scores + pair * max_nodes + k, mask=has_node, other=0.0)
            x = tl.load(nodes + places, mask=mask, other=0.0).to(tl.float32)
            by_x = d[:, None] * f[None, :]
            if HAS_UPSTREAM:
                by_x += tl.load(upstream + places, mask=mask, other=0.0).to(tl.float32)
            tl.store(by_nodes + places, by_x.to(by_nodes.dtype.element_ty), mask=mask)
            by_f += d[:, None] * x
            by_b += d
            start += ROWS
    part = (tl.program_id(1) * num_texts + text).to(tl.int64)
    tl.store(by_weight + part * sim_dim + s, tl.sum(by_f, axis=0), mask=has_sim)
    tl.store(by_bias + part, tl.sum(by_b, axis=0))


class _PackedScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        x = nodes.contiguous()
        out = x.new_empty(len(x), packing.num_texts, 1 + packing.max_seqlen, dtype=torch.float32)
        if out.numel():
            score_forward[(packing.num_texts, len(x))](
                x, weight.contiguous(), bias, out, packing.cu_seqlens,
                packing.num_texts, x.shape[1], 1 + packing.max_seqlen, x.shape[2],
                ROWS=_SCORE_ROWS, SIM=block(x.shape[2]), num_warps=_WARPS, num_stages=1,
            )  # fmt: skip
        ctx.save_for_backward(nodes, weight, bias)
        ctx.packing = packing
        ctx.set_materialize_grads(False)
        return out, nodes

    @staticmethod
    def backward(
        ctx: Any, by_scores: Tensor | None, upstream: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        nodes, weight, bias = ctx.saved_tensors
        packing = ctx.packing
        if by_scores is None:
            return upstream, None, None, None
        if torch.is_grad_enabled():
            by_nodes, by_weight, by_bias, _ = differentiable_gradients(
                ctx, packed_scores_reference, (nodes, weight, bias), by_scores, packing
            )
            if by_nodes is not None and upstream is not None:
                by_nodes = by_nodes + upstream
            return by_nodes, by_weight, by_bias, None
        x, f, d = nodes.contiguous(), weight.contiguous(), by_scores.float().contiguous()
        up = x if upstream is None else upstream.contiguous()
        by_x = torch.empty_like(x)
        (n, num_nodes, sim_dim), m = x.shape, packing.num_texts
        groups = -(-n // _IMAGES)
        weight_parts, bias_parts = d.new_empty(groups * m, sim_dim), d.new_empty(groups * m)
        if x.numel():
            score_backward[(m, groups)](
                d, up, x, f, by_x, weight_parts, bias_parts, packing.cu_seqlens,
                m, num_nodes, 1 + packing.max_seqlen, n, sim_dim,
                HAS_UPSTREAM=upstream is not None, IMAGES=_IMAGES, ROWS=_SCORE_ROWS_BACK,
                SIM=block(sim_dim), num_warps=_WARPS, num_stages=1,
            )  # fmt: skip
            zero_spare_nodes(packing, by_x)
        by_weight = weight_parts.sum(dim=0, keepdim=True).to(weight.dtype)
        return by_x, by_weight, bias_parts.sum(dim=0, keepdim=True).to(bias.dtype), None


@jit(do_not_specialize=["num_texts", "num_nodes", "max_nodes"])
def sum_forward(
    weights, nodes, out, cu_seqlens, num_texts, num_nodes, max_nodes, sim_dim,
    ROWS: tl.constexpr, SIM: tl.constexpr,
):  # fmt: skip
    """Forward: one image and one caption a program, ROWS nodes at a time."""
    text = tl.program_id(0)
    image = tl.program_id(1).to(tl.int64)
    s = tl.arange(0, SIM)
    first = tl.load(cu_seqlens + text)
    count = 1 + tl.load(cu_seqlens + text + 1) - first
    has_sim = s < sim_dim
    pair = image * num_texts + text
    total = tl.full((ROWS, SIM), 0.0, tl.float32)  # summed over its rows once, at the end
    start = 0
    while start < count:
        k = start + tl.arange(0, ROWS)
        has_node = k < count
        row = tl.where(k == 0, text, num_texts + first + k - 1)
        weight = tl.load(weights + pair * max_nodes + k, mask=has_node, other=0.0)
        x = tl.load(
            nodes + (image * num_nodes + row)[:, None] * sim_dim + s[None, :],
            mask=has_node[:, None] & has_sim[None, :],
            other=0.0,
        )
        total += weight[:, None] * x.to(tl.float32)
        start += ROWS
    tl.store(out + pair * sim_dim + s, tl.sum(total, axis=0), mask=has_sim)


@jit(do_not_specialize=["num_texts", "num_nodes", "max_nodes"])
def sum_backward(
    upstream, weights, nodes, by_weights, by_nodes, cu_seqlens, num_texts, num_nodes, max_nodes, sim_dim,
    ROWS: tl.constexpr, SIM: tl.constexpr,
):  # fmt: skip
    """Backward: the gradients of the weights, 0 where a caption has no node, and of the nodes."""
    text = tl.program_id(0)
    image = tl.program_id(1).to(tl.int64)
    s = tl.arange(0, SIM)
    first = tl.load(cu_seqlens + text)
    count = 1 + tl.load(cu_seqlens + text + 1) - first
    has_sim = s < sim_dim
    pair = image * num_texts + text
    g = tl.load(upstream + pair * sim_dim + s, mask=has_sim, other=0.0)
    start = 0
    while start < max_nodes:
        k = start + tl.arange(0, ROWS)
        has_node = k < count
        row = tl.where(k == 0, text, num_texts + first + k - 1)
        places = (image * num_nodes + row)[:, None] * sim_dim + s[None, :]
        mask = has_node[:, None] & has_sim[None, :]
        x = tl.load(nodes + places, mask=mask, other=0.0).to(tl.float32)
        tl.store(by_weights + pair * max_nodes + k, tl.sum(x * g[None, :], axis=1), mask=k < max_nodes)
        weight = tl.load(weights + pair * max_nodes + k, mask=has_node, other=0.0)
        by_x = (weight[:, None] * g[None, :]).to(by_nodes.dtype.element_ty)
        tl.store(by_nodes + places, by_x, mask=mask)
        start += ROWS


class _PackedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, nodes: Tensor, packing: Packing) -> Tensor:
        out = nodes.new_empty(len(nodes), packing.num_texts, nodes.shape[2], dtype=torch.float32)
        tensors = (weights.float().contiguous(), nodes.contiguous(), out)
        _launch_sum(sum_forward, nodes, tensors, packing)
        ctx.save_for_backward(weights, nodes)
        ctx.packing = packing
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        weights, nodes = ctx.saved_tensors
        packing = ctx.packing
        if torch.is_grad_enabled():
            return differentiable_gradients(ctx, packed_sum_reference, (weights, nodes), upstream, packing)
        w, x, g = weights.float().contiguous(), nodes.contiguous(), upstream.float().contiguous()
        by_w, by_x = torch.empty_like(w), torch.empty_like(x)
        _launch_sum(sum_backward, nodes, (g, w, x, by_w, by_x), packing)
        zero_spare_nodes(packing, by_x)
        return by_w.to(weights.dtype), by_x, None


def _launch_sum(kernel: Any, nodes: Tensor, tensors: tuple[Tensor, ...], packing: Packing) -> None:
    n, num_nodes, sim_dim = nodes.shape
    kernel[(packing.num_texts, n)](
        *tensors, packing.cu_seqlens, packing.num_texts, num_nodes, 1 + packing.max_seqlen, sim_dim,
        SIM=block(sim_dim), ROWS=_SUM_ROWS, num_warps=_WARPS, num_stages=1,
    )  # fmt: skip
