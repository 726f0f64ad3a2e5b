"""The similarity vector of every word with every image, without writing the attended vectors anywhere.

    z = ℓ2( P (c - w)² + b ),   c = sum_k a_k v_k

c is as wide as the embeddings, one for each word and image: at batch 128 with captions of 16 words half a
gigabyte in bfloat16, four times what z takes. Forward, a program takes one image and a block of words, forms
c a few columns at a time, and multiplies their squared difference with the same columns of P at once.

Backward, with h the gradient of z before its normalisation, e = 2 (c - w) ∘ Pᵀh is formed likewise:

    dw = -sum over images of e,   da = V e,   dV = Aᵀ e,   dP = sum of h (c - w)²ᵀ,   db = sum of h

These are sums over words, over images and over the width, so no order of loops suits them all. Computing e
once for each would take twice the products. So e and (c - w)² are written for a bounded number of words at a
time, and the sums that cross programs are matrix products and one more kernel. Nothing is added atomically.

Several projections write their vectors one after the other into one tensor, which nobody has to put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.kernels.image_sum import minus_sum_over_images
from sremkit.kernels.language import EPSILON, block, in_format, precision
from sremkit.kernels.node_projection_kernels import LEAST_WORDS, launch, project, project_back
from sremkit.kernels.twice import recorded_gradients

_BACKWARD_BYTES = 288 << 20  # for each of the two wide buffers of the backward pass


class Projected(NamedTuple):
    """What one projection is made of."""

    attention: Tensor  # (n, r, W), scaled so that the attended vectors have unit length
    regions: Tensor  # (n, r, d)
    words: Tensor  # (W, d)
    weight: Tensor  # (s, d)
    bias: Tensor  # (s,)


def node_projection(*parts: Projected, dtype: torch.dtype) -> Tensor:
    """Similarity vectors (n, W, s) of W words with n images, by kernels; those of all parts in a row.

    Args:
        dtype: number format of the products and of the result; sums and norms are float32.
    """
    return _NodeProjection.apply(dtype, *(tensor for part in parts for tensor in part))


def plain_node_projection(
    attention: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """The same in plain PyTorch, which forms the attended vectors."""
    difference = torch.baddbmm(-words.unsqueeze(0), attention.transpose(1, 2), regions)  # (n, W, d)
    z = F.linear(difference.square(), weight, bias)
    square = z.square().sum(dim=-1, keepdim=True).clamp_min(EPSILON**4)
    return z / (square.sqrt() + EPSILON)


class _NodeProjection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> Tensor:
        parts = _parts(tensors)
        n, s = len(parts[0].regions), len(parts[0].weight)
        converted = [_in_format(dtype, part) for part in parts]
        out = torch.empty(n, sum(len(p.words) for p in parts), s, dtype=dtype, device=parts[0].regions.device)
        lengths = [_run_forward(p, piece) for p, piece in zip(converted, _pieces(out, parts), strict=True)]
        ctx.save_for_backward(out, *tensors, *(t for p in converted for t in p), *lengths)
        ctx.num_tensors = len(tensors)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        out, *saved = ctx.saved_tensors
        k = ctx.num_tensors
        given, converted, lengths = saved[:k], _parts(saved[k : 2 * k]), saved[2 * k :]
        if torch.is_grad_enabled():
            return None, *recorded_gradients(_plain_parts, given, upstream, ctx.needs_input_grad[1:])
        pieces = zip(
            converted,
            _parts(given),
            _pieces(upstream, converted),
            _pieces(out, converted),
            lengths,
            strict=True,
        )
        with torch.autocast(device_type=upstream.device.type, enabled=False):
            found = [gradient for piece in pieces for gradient in _run_backward(*piece)]
        return None, *(g.to(x.dtype) for g, x in zip(found, given, strict=True))


def _parts(tensors: Sequence[Tensor]) -> list[Projected]:
    return [Projected(*tensors[k : k + 5]) for k in range(0, len(tensors), 5)]


def _in_format(dtype: torch.dtype, part: Projected) -> Projected:
    attention, regions, words, weight = in_format(dtype, *part[:4])
    return Projected(attention, regions, words, weight, part.bias.contiguous())


def _plain_parts(*tensors: Tensor) -> Tensor:
    return torch.cat([plain_node_projection(*part) for part in _parts(tensors)], dim=1)


def _pieces(nodes: Tensor, parts: Sequence[Projected]) -> tuple[Tensor, ...]:
    """The rows of each part, as views."""
    return nodes.split([len(part.words) for part in parts], dim=1)


def _run_forward(part: Projected, out: Tensor) -> Tensor:
    """Writes the vectors to `out` (n, W, s); what they were multiplied with for unit length, (n, W)."""
    (n, r, num_words), s = part.attention.shape, len(part.weight)
    inverse = out.new_empty(n, num_words, dtype=torch.float32)
    if out.numel():
        arguments = (*part, out, inverse, out.stride(0), num_words, r, s, EPSILON)
        launch(project, out.dtype, num_words, n, arguments, **_constants(part))
    return inverse


def _run_backward(
    part: Projected, given: Projected, upstream: Tensor, out: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by all that `part` is made of; what a kernel writes has the number format that was `given`."""
    attention, regions, words, weight, _bias = part
    (n, r, num_words), (s, d) = attention.shape, weight.shape
    # Of several parts, upstream is a slice: only its images may lie apart.
    if upstream.stride()[1:] != (s, 1):
        upstream = upstream.contiguous()
    by_attention = torch.empty_like(attention, dtype=given.attention.dtype)
    by_words = (torch.empty_like if n else torch.zeros_like)(words, dtype=given.words.dtype)
    by_weight = torch.zeros_like(weight, dtype=torch.float32)
    by_bias = by_weight.new_zeros(s)
    by_regions: Tensor | None = None
    at_once = _words_at_once(num_words, n * d * out.element_size())
    for first in range(0, num_words if n else 0, at_once):
        here = min(at_once, num_words - first)
        by_sum, squares, by_context = (attention.new_empty(n, here, k) for k in (s, d, d))
        # A row for each program of the smallest blocks; with larger ones the last rows stay zero.
        bias_parts = by_bias.new_zeros(n * -(-here // LEAST_WORDS), s)
        arguments = (
            upstream, out, inverse, attention, regions, words, weight,
            by_sum, bias_parts, by_attention, squares, by_context,
            upstream.stride(0), out.stride(0), num_words, first, here, r, s,
        )  # fmt: skip
        launch(project_back, out.dtype, here, n, arguments, **_constants(part))
        minus_sum_over_images(by_context, by_words[first : first + here])
        by_these = attention[:, :, first : first + here] @ by_context
        # Two products are rounded no more often than their sum in float32 would be; of more it would be.
        if by_regions is None:
            by_regions = by_these if num_words <= 2 * at_once else by_these.float()
        else:
            by_regions += by_these
        by_weight += by_sum.flatten(0, 1).T @ squares.flatten(0, 1)
        by_bias += bias_parts.sum(dim=0)
    if by_regions is None:
        by_regions = torch.zeros_like(regions)
    return by_attention, by_regions, by_words, by_weight, by_bias


def _constants(part: Projected) -> dict[str, Any]:
    return {
        "WIDTH": part.words.shape[1],
        "REGIONS": block(part.regions.shape[1]),
        "SIM": block(len(part.weight)),
        "PRECISION": precision(part.words.dtype),
    }


def _words_at_once(num_words: int, bytes_a_word: int) -> int:
    """How many words the backward pass takes at once: whole blocks, and about as many each time."""
    most = max(128, _BACKWARD_BYTES // max(1, bytes_a_word))
    times = -(-num_words // most) or 1
    return -(-num_words // (128 * times)) * 128 or 128
