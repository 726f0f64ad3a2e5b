"""The similarity vectors of words with images on a processor, a tile that stays in the cache at a time.

    s = ℓ2(z),   z = P e² + b,   e = sum_k a_k v_k - w

e is as wide as the embeddings, one for each word and image. Autograd would write it, its square and their
gradients to memory, and a checkpoint would multiply by P once more. Here a tile of images is taken at a time. The
backward pass needs z nowhere, so only e is formed again; with h the gradient by z,

    f = 2 e ∘ Pᵀh:   ∂a_k = v_k · f,   ∂v_k = sum_words a_k f,   ∂w = -sum_images f,   ∂P = sum h e²ᵀ,   ∂b = sum h

Backward passes that are to be differentiated themselves go by way of the plain twin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.kernels.twice import recorded_gradients
from sremkit.models.similarity import EPSILON, unit

ROWS = 1024  # of e, in a tile: 4 MB in float32 at a width of 1,024


def tiled_nodes(
    attention: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor, whole: Tensor
) -> Tensor:
    """Nodes (n, k, 1 + w, s): the given global ones first, then those of the words.

    Args:
        attention: (n, r, k·w), scaled so that what is attended to has unit length.
        regions: (n, r, d)
        words: (k, w, d)
        weight: (s, d)
        bias: (s,)
        whole: (n, k, s)
    """
    return TiledNodes.apply(attention, regions, words, weight, bias, whole)[0]


def plain_nodes(
    attention: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor, whole: Tensor
) -> Tensor:
    """The same, each step at once for all words and images."""
    difference = torch.baddbmm(-words.flatten(0, 1), attention.transpose(1, 2), regions)  # (n, k·w, d)
    compared = F.linear(difference.square(), weight, bias).unflatten(1, words.shape[:2])
    return torch.cat([whole.unsqueeze(2), unit(compared)], dim=2)


def can_tile(*tensors: Tensor) -> bool:
    """Whether all lie on a processor in full precision, and nobody else is to choose how to compute."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return all(x.device.type == "cpu" and x.dtype == tensors[0].dtype for x in tensors) and (
        tensors[0].dtype in (torch.float32, torch.float64)
    )


def _images_at_once(num_words: int) -> int:
    return max(1, ROWS // num_words)


def _tiles(num_images: int, num_words: int) -> Iterator[slice]:
    size = _images_at_once(num_words)
    return (slice(start, min(start + size, num_images)) for start in range(0, num_images, size))


def _difference(attention: Tensor, regions: Tensor, words: Tensor, *, out: Tensor) -> None:
    """What the words attend to less themselves: (t, k·w, d)."""
    torch.bmm(attention.transpose(1, 2), regions, out=out).sub_(words.flatten(0, 1))


class TiledNodes(torch.autograd.Function):
    """The nodes, and the lengths (n, k, w, 1) of the words' vectors before normalisation, without gradient."""

    @staticmethod
    def forward(
        attention: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor, whole: Tensor
    ) -> tuple[Tensor, Tensor]:
        (n, _, d), (k, w, _), s = regions.shape, words.shape, len(weight)
        nodes, lengths = whole.new_empty(n, k, 1 + w, s), whole.new_empty(n, k, w, 1)
        nodes[:, :, 0] = whole
        buffer = words.new_empty(_images_at_once(k * w), k * w, d)
        for images in _tiles(n, k * w):
            e = buffer[: images.stop - images.start]  # (t, k·w, d)
            _difference(attention[images], regions[images], words, out=e)
            z = F.linear(e.mul_(e), weight, bias).unflatten(1, (k, w))  # (t, k, w, s)
            length = torch.linalg.vector_norm(z, dim=3, keepdim=True, out=lengths[images])
            length.clamp_min_(EPSILON**2)
            torch.div(z, length + EPSILON, out=nodes[images, :, 1:])
        return nodes, lengths

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        nodes, lengths = output
        ctx.mark_non_differentiable(lengths)
        ctx.save_for_backward(*inputs, nodes, lengths)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, nodes, lengths = ctx.saved_tensors
        if torch.is_grad_enabled():  # this pass will itself be differentiated
            return tuple(recorded_gradients(plain_nodes, inputs, upstream, ctx.needs_input_grad))
        attention, regions, words, weight, bias, _ = inputs
        (n, _, d), (k, w, _) = regions.shape, words.shape
        by_attention, by_regions = torch.empty_like(attention), torch.empty_like(regions)
        by_words, by_weight = torch.zeros_like(words).flatten(0, 1), torch.zeros_like(weight)
        by_bias, twice_weight = torch.zeros_like(bias), 2 * weight
        buffers = words.new_empty(2, _images_at_once(k * w), k * w, d)
        for images in _tiles(n, k * w):
            e, f = buffers[:, : images.stop - images.start].unbind()  # (t, k·w, d)
            h = _before_unit(upstream[images, :, 1:], nodes[images, :, 1:], lengths[images]).flatten(0, 2)
            _difference(attention[images], regions[images], words, out=e)
            torch.mm(h, twice_weight, out=f.flatten(0, 1)).mul_(e.flatten(0, 1))
            by_weight.addmm_(h.T, e.mul_(e).flatten(0, 1))
            by_bias += h.sum(dim=0)
            torch.bmm(regions[images], f.transpose(1, 2), out=by_attention[images])
            torch.bmm(attention[images], f, out=by_regions[images])
            by_words -= f.sum(dim=0)
        return by_attention, by_regions, by_words.view_as(words), by_weight, by_bias, upstream[:, :, 0]


def _before_unit(upstream: Tensor, units: Tensor, lengths: Tensor) -> Tensor:
    """Gradient by vectors of these lengths from the one by what normalisation made of them."""
    floored = lengths + EPSILON
    along = (upstream * units).sum(dim=3, keepdim=True) * (floored / lengths)
    return torch.addcmul(upstream, units, along, value=-1).div_(floored)
