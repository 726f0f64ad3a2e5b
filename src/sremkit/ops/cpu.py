"""CPU backends of the ops: autograd functions with a backward pass of their own, in buffers that stay in the cache.

Backward passes that will themselves be differentiated go through the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.ops.functional import EPSILON, differentiable_gradients
from sremkit.ops.gru import gru_steps_reference
from sremkit.ops.node_pooling import node_scores_reference
from sremkit.ops.node_projection import padded_reference

ROWS = 1024  # of e in a tile of the node projection: 4 MB in float32 at a width of 1,024


def gru_steps(inputs: Tensor, weight: Tensor, bias: Tensor, batch_sizes: Sequence[int]) -> Tensor:
    """As `gru_steps_reference`: one direction, step by step.

    Autograd would compute, for every step, a gradient as large as all inputs, and one as large as all weights. Here
    each step writes its rows of one buffer, and the gradient of the weights is a single product.
    """
    return _GruSteps.apply(inputs, weight, bias, tuple(batch_sizes))


def _rows(batch_sizes: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """For each step its rows, and those of the previous step that continue; for the first step these are empty."""
    before, start = slice(0, 0), 0
    for size in batch_sizes:
        rows = slice(start, start + size)
        yield rows, slice(before.start, before.start + size) if start else before
        before, start = rows, rows.stop


class _GruSteps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, batch_sizes: tuple[int, ...]) -> Tensor:
        h = weight.shape[1]
        states, gates = inputs.new_empty(len(inputs), h), torch.empty_like(inputs)  # gates: r, z, n
        of_n = inputs.new_empty(len(inputs), h)  # U_n h and its bias
        of_state, zeros = inputs.new_empty(batch_sizes[0], 3 * h), inputs.new_zeros(batch_sizes[0], h)
        for rows, previous in _rows(batch_sizes):
            before = states[previous] if rows.start else zeros
            u, x, g = of_state[: len(before)], inputs[rows], gates[rows]
            torch.addmm(bias, before, weight.T, out=u)
            of_n[rows] = u[:, 2 * h :]
            torch.add(x[:, : 2 * h], u[:, : 2 * h], out=g[:, : 2 * h]).sigmoid_()
            r, z, n = g.chunk(3, dim=1)
            torch.addcmul(x[:, 2 * h :], r, u[:, 2 * h :], out=n).tanh_()
            torch.lerp(n, before, z, out=states[rows])
        ctx.save_for_backward(inputs, weight, bias, states, gates, of_n)
        ctx.batch_sizes = batch_sizes
        return states

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, states, gates, of_n = ctx.saved_tensors
        batch_sizes, h = ctx.batch_sizes, weight.shape[1]
        if torch.is_grad_enabled():  # this pass will itself be differentiated
            reference, inputs_and_weights = gru_steps_reference, (inputs, weight, bias)
            return differentiable_gradients(ctx, reference, inputs_and_weights, upstream, batch_sizes)
        by_inputs, by_products = torch.empty_like(gates), torch.empty_like(gates)
        earlier = torch.zeros_like(states)  # the state before each word
        by_state = upstream.clone()
        for rows, previous in reversed(list(_rows(batch_sizes))):
            d, (r, z, n) = by_state[rows], gates[rows].chunk(3, dim=1)
            before, (by_r, by_z, by_n) = earlier[rows], by_inputs[rows].chunk(3, dim=1)
            if rows.start:
                before.copy_(states[previous])
            torch.sub(before, n, out=by_z).mul_(d).mul_(z).addcmul_(by_z, z, value=-1)
            torch.addcmul(d, d, z, out=by_n, value=-1)
            by_n.addcmul_(by_n * n, n, value=-1)
            torch.mul(by_n, of_n[rows], out=by_r).mul_(r).addcmul_(by_r, r, value=-1)
            products = by_products[rows]
            products.copy_(by_inputs[rows])
            products[:, 2 * h :].mul_(r)
            if rows.start:
                by_state[previous].addcmul_(d, z).addmm_(products, weight)
        return by_inputs, by_products.T @ earlier, by_products.sum(dim=0), None


def scores_and_nodes(nodes: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (...) of the nodes (..., s), and the nodes: one backward pass for both."""
    return _ScoresAndNodes.apply(nodes, weight, bias)


class _ScoresAndNodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, nodes: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(nodes, weight, bias)
        ctx.set_materialize_grads(False)
        return nodes @ weight[0] + bias, nodes

    @staticmethod
    def backward(
        ctx: Any, by_scores: Tensor | None, upstream: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        if by_scores is None:
            return upstream, None, None
        nodes, weight, bias = inputs = ctx.saved_tensors
        if torch.is_grad_enabled():  # this pass will itself be differentiated
            by_nodes, by_weight, by_bias = differentiable_gradients(ctx, node_scores_reference, inputs, by_scores)
            if by_nodes is not None and upstream is not None:
                by_nodes = by_nodes + upstream
            return by_nodes, by_weight, by_bias
        row, column = weight[0], by_scores.unsqueeze(-1)
        by_nodes = column * row if upstream is None else torch.addcmul(upstream, column, row)
        by_weight = by_scores.flatten() @ nodes.flatten(0, -2)
        return by_nodes, by_weight.unsqueeze(0), by_scores.sum().view_as(bias)


def tiled_nodes(
    attention: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor, global_nodes: Tensor
) -> Tensor:
    """As `padded_reference`, in tiles of images: s = ℓ2(z), z = P e² + b, e = sum_k a_k v_k - w.

    Autograd would write e, its square and their gradients to memory, and a checkpoint would multiply by P once
    more. The backward pass needs z nowhere, so only e is recomputed; with h the gradient with respect to z,

        f = 2 e ∘ Pᵀh:   ∂a_k = v_k · f,   ∂v_k = sum_words a_k f,   ∂w = -sum_images f,   ∂P = sum h e²ᵀ,   ∂b = sum h
    """
    return TiledNodes.apply(attention, regions, words, weight, bias, global_nodes)[0]


def _images_per_tile(num_words: int) -> int:
    return max(1, ROWS // num_words)


def _tiles(num_images: int, num_words: int) -> Iterator[slice]:
    size = _images_per_tile(num_words)
    return (slice(start, min(start + size, num_images)) for start in range(0, num_images, size))


def _difference(attention: Tensor, regions: Tensor, words: Tensor, *, out: Tensor) -> None:
    """Attended vectors minus words: (t, k·w, d)."""
    torch.bmm(attention.transpose(1, 2), regions, out=out).sub_(words.flatten(0, 1))


class TiledNodes(torch.autograd.Function):
    """The nodes, and the norms (n, k, w, 1) of the words' vectors before normalisation, without gradient."""

    @staticmethod
    def forward(
        attention: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor, global_nodes: Tensor
    ) -> tuple[Tensor, Tensor]:
        (n, _, d), (k, w, _), s = regions.shape, words.shape, len(weight)
        nodes, norms = global_nodes.new_empty(n, k, 1 + w, s), global_nodes.new_empty(n, k, w, 1)
        nodes[:, :, 0] = global_nodes
        buffer = words.new_empty(_images_per_tile(k * w), k * w, d)
        for images in _tiles(n, k * w):
            e = buffer[: images.stop - images.start]  # (t, k·w, d)
            _difference(attention[images], regions[images], words, out=e)
            z = F.linear(e.mul_(e), weight, bias).unflatten(1, (k, w))  # (t, k, w, s)
            norm = torch.linalg.vector_norm(z, dim=3, keepdim=True, out=norms[images])
            norm.clamp_min_(EPSILON**2)
            torch.div(z, norm + EPSILON, out=nodes[images, :, 1:])
        return nodes, norms

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        nodes, norms = output
        ctx.mark_non_differentiable(norms)
        ctx.save_for_backward(*inputs, nodes, norms)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, nodes, norms = ctx.saved_tensors
        if torch.is_grad_enabled():  # this pass will itself be differentiated
            return differentiable_gradients(ctx, padded_reference, inputs, upstream)
        attention, regions, words, weight, bias, _ = inputs
        (n, _, d), (k, w, _) = regions.shape, words.shape
        by_attention, by_regions = torch.empty_like(attention), torch.empty_like(regions)
        by_words, by_weight = torch.zeros_like(words).flatten(0, 1), torch.zeros_like(weight)
        by_bias, twice_weight = torch.zeros_like(bias), 2 * weight
        buffers = words.new_empty(2, _images_per_tile(k * w), k * w, d)
        for images in _tiles(n, k * w):
            e, f = buffers[:, : images.stop - images.start].unbind()  # (t, k·w, d)
            h = _before_normalization(upstream[images, :, 1:], nodes[images, :, 1:], norms[images]).flatten(0, 2)
            _difference(attention[images], regions[images], words, out=e)
            torch.mm(h, twice_weight, out=f.flatten(0, 1)).mul_(e.flatten(0, 1))
            by_weight.addmm_(h.T, e.mul_(e).flatten(0, 1))
            by_bias += h.sum(dim=0)
            torch.bmm(regions[images], f.transpose(1, 2), out=by_attention[images])
            torch.bmm(attention[images], f, out=by_regions[images])
            by_words -= f.sum(dim=0)
        return by_attention, by_regions, by_words.view_as(words), by_weight, by_bias, upstream[:, :, 0]


def _before_normalization(upstream: Tensor, normalized: Tensor, norms: Tensor) -> Tensor:
    """Gradient with respect to vectors of these norms, from that with respect to the normalized vectors."""
    divisor = norms + EPSILON
    along = (upstream * normalized).sum(dim=3, keepdim=True) * (divisor / norms)
    return torch.addcmul(upstream, normalized, along, value=-1).div_(divisor)
