"""Kernels of the attention of a pair's nodes to each other, for all images with packed captions.

    out_i = sum_k softmax_k(q_i · x_k) x_k,   over the nodes k of the same image and caption

A program takes one image and one caption. Its nodes are read once; products and softmax stay inside. In
SGR's last step only the global node asks, and then there is one row a caption.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.kernels.language import block, caption_rows, jit, precision, short_block, tl
from sremkit.kernels.packing import Packing, packed, padded


def plain_node_attention(asking: Tensor, nodes: Tensor, packing: Packing) -> Tensor:
    """The same in plain PyTorch, over padded captions."""
    x, mask = padded(nodes, packing), packing.node_mask()  # (n, m, l, s), (m, l)
    only_global = asking.shape[1] == packing.num_texts
    q = asking.unsqueeze(2) if only_global else padded(asking, packing)
    scores = q @ x.transpose(2, 3)
    scores = scores.masked_fill(~mask.unsqueeze(1), torch.finfo(scores.dtype).min)
    attended = scores.softmax(dim=3) @ x
    if only_global:
        return attended.squeeze(2)
    return F.pad(packed(attended, packing), (0, 0, 0, asking.shape[1] - packing.num_nodes))


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
    """Dot products (ROWS, COLUMNS) of rows of two matrices, BLOCK_S numbers at a time."""
    total = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    for start in range(0, SIM, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        inside = s < sim_dim
        x = tl.load(left + left_at[:, None] + s[None, :], mask=has_left[:, None] & inside[None, :], other=0.0)
        y = tl.load(
            right + right_at[None, :] + s[:, None], mask=has_right[None, :] & inside[:, None], other=0.0
        )
        total = tl.dot(x, y, total, input_precision=PRECISION)
    return total


@jit
def _caption(starts, num_texts, num_nodes, num_asking, sim_dim, ONLY_GLOBAL: tl.constexpr,
             ASKING: tl.constexpr, NODES: tl.constexpr):  # fmt: skip
    """Where this program's nodes and those that ask lie, and which of them there are."""
    text = tl.program_id(0)
    image = tl.program_id(1).to(tl.int64)
    rows, count = caption_rows(starts, text, num_texts, NODES)
    asking_rows, _count = caption_rows(starts, text, num_texts, ASKING)
    has_node = tl.arange(0, NODES) < count
    has_asking = tl.arange(0, ASKING) < (1 if ONLY_GLOBAL else count)
    at, asking_at = (image * num_nodes + rows) * sim_dim, (image * num_asking + asking_rows) * sim_dim
    return at, asking_at, has_node, has_asking


@jit
def _attend(
    asking, nodes, out, starts, num_texts, num_nodes, num_asking, sim_dim,
    ONLY_GLOBAL: tl.constexpr, ASKING: tl.constexpr, NODES: tl.constexpr,
    SIM: tl.constexpr, BLOCK_S: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward for a caption of up to NODES nodes."""
    at, asking_at, has_node, has_asking = _caption(
        starts, num_texts, num_nodes, num_asking, sim_dim, ONLY_GLOBAL, ASKING, NODES
    )
    scores = _products(
        asking, nodes, asking_at, at, has_asking, has_node, sim_dim, ASKING, NODES, SIM, BLOCK_S, PRECISION
    )
    edges = _softmax(scores, has_node).to(nodes.dtype.element_ty)
    for start in range(0, SIM, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        inside = s < sim_dim
        x = tl.load(nodes + at[:, None] + s[None, :], mask=has_node[:, None] & inside[None, :], other=0.0)
        attended = tl.dot(edges, x, input_precision=PRECISION)
        tl.store(
            out + asking_at[:, None] + s[None, :],
            attended.to(out.dtype.element_ty),
            mask=has_asking[:, None] & inside[None, :],
        )


@jit(do_not_specialize=["num_texts", "num_nodes", "num_asking"])
def attend(
    asking, nodes, out, starts, num_texts, num_nodes, num_asking, sim_dim,
    ONLY_GLOBAL: tl.constexpr, SHORT: tl.constexpr, NODES: tl.constexpr,
    SIM: tl.constexpr, BLOCK_S: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward: one image and one caption a program."""
    if _num_nodes(starts) <= SHORT:
        _attend(
            asking, nodes, out, starts, num_texts, num_nodes, num_asking, sim_dim,
            ONLY_GLOBAL, 16 if ONLY_GLOBAL else SHORT, SHORT, SIM, BLOCK_S, PRECISION,
        )  # fmt: skip
    else:
        _attend(
            asking, nodes, out, starts, num_texts, num_nodes, num_asking, sim_dim,
            ONLY_GLOBAL, 16 if ONLY_GLOBAL else NODES, NODES, SIM, BLOCK_S, PRECISION,
        )  # fmt: skip


@jit
def _num_nodes(starts):
    text = tl.program_id(0)
    return 1 + tl.load(starts + text + 1) - tl.load(starts + text)


@jit
def _attend_back(
    upstream, asking, nodes, by_asking, by_nodes, sums, starts, num_texts, num_nodes, num_asking, sim_dim,
    ONLY_GLOBAL: tl.constexpr, ASKING: tl.constexpr, NODES: tl.constexpr,
    SIM: tl.constexpr, BLOCK_S: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward for a caption of up to NODES nodes."""
    at, asking_at, has_node, has_asking = _caption(
        starts, num_texts, num_nodes, num_asking, sim_dim, ONLY_GLOBAL, ASKING, NODES
    )
    scores = _products(
        asking, nodes, asking_at, at, has_asking, has_node, sim_dim, ASKING, NODES, SIM, BLOCK_S, PRECISION
    )
    by_edges = _products(
        upstream, nodes, asking_at, at, has_asking, has_node, sim_dim, ASKING, NODES, SIM, BLOCK_S, PRECISION
    )
    edges = _softmax(scores, has_node)
    by_scores = edges * (by_edges - tl.sum(edges * by_edges, axis=1)[:, None])
    edges, by_scores = edges.to(nodes.dtype.element_ty), by_scores.to(nodes.dtype.element_ty)
    sums += (tl.program_id(1).to(tl.int64) * num_texts + tl.program_id(0)) * sim_dim
    for start in range(0, SIM, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        inside = s < sim_dim
        places, mask = at[:, None] + s[None, :], has_node[:, None] & inside[None, :]
        asking_places, asking_mask = asking_at[:, None] + s[None, :], has_asking[:, None] & inside[None, :]
        x = tl.load(nodes + places, mask=mask, other=0.0)
        q = tl.load(asking + asking_places, mask=asking_mask, other=0.0)
        g = tl.load(upstream + asking_places, mask=asking_mask, other=0.0)
        by_q = tl.dot(by_scores, x, input_precision=PRECISION)  # 0 for those who are not there
        tl.store(by_asking + asking_places, by_q.to(by_asking.dtype.element_ty), mask=asking_mask)
        tl.store(sums + s, tl.sum(by_q, axis=0), mask=inside)
        by_x = tl.dot(tl.trans(edges), g, input_precision=PRECISION)
        by_x = tl.dot(tl.trans(by_scores), q, by_x, input_precision=PRECISION)
        tl.store(by_nodes + places, by_x.to(by_nodes.dtype.element_ty), mask=mask)


@jit(do_not_specialize=["num_texts", "num_nodes", "num_asking"])
def attend_back(
    upstream, asking, nodes, by_asking, by_nodes, sums, starts, num_texts, num_nodes, num_asking, sim_dim,
    ONLY_GLOBAL: tl.constexpr, SHORT: tl.constexpr, NODES: tl.constexpr,
    SIM: tl.constexpr, BLOCK_S: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward: every node belongs to one program, so each gradient is written once.

    `sums` are of the gradients of those who ask, one row a program.
    """
    if _num_nodes(starts) <= SHORT:
        _attend_back(
            upstream, asking, nodes, by_asking, by_nodes, sums, starts, num_texts, num_nodes, num_asking, sim_dim,
            ONLY_GLOBAL, 16 if ONLY_GLOBAL else SHORT, SHORT, SIM, BLOCK_S, PRECISION,
        )  # fmt: skip
    else:
        _attend_back(
            upstream, asking, nodes, by_asking, by_nodes, sums, starts, num_texts, num_nodes, num_asking, sim_dim,
            ONLY_GLOBAL, 16 if ONLY_GLOBAL else NODES, NODES, SIM, BLOCK_S, PRECISION,
        )  # fmt: skip


def launch(kernel: Any, q: Tensor, x: Tensor, tensors: tuple[Tensor, ...], packing: Packing) -> None:
    """Run a kernel over all captions and images."""
    only_global = q.shape[1] == packing.num_texts
    num_nodes = block(1 + packing.longest)
    kernel[(packing.num_texts, len(q))](
        *tensors,
        packing.starts,
        packing.num_texts,
        x.shape[1],
        q.shape[1],
        q.shape[2],
        ONLY_GLOBAL=only_global,
        SHORT=short_block(num_nodes),
        NODES=num_nodes,
        SIM=block(q.shape[2]),
        BLOCK_S=min(block(q.shape[2]), _columns(num_nodes, q.element_size())),
        PRECISION=precision(q.dtype),
        **_schedule(num_nodes, q.element_size()),
    )


def _columns(num_nodes: int, itemsize: int) -> int:
    """How many columns are taken at a time: as many as several blocks of them fit a core's shared memory."""
    return 32 if itemsize == 4 else 128 if num_nodes <= 64 else 64


def _schedule(num_nodes: int, itemsize: int) -> dict[str, int]:
    if num_nodes > 32:
        return {"num_warps": 8, "num_stages": 2 if num_nodes <= 64 else 1}
    return {"num_warps": 2 if itemsize == 2 else 4, "num_stages": 2}
