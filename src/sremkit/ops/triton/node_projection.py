"""Triton backend of the node projection: the attended vectors c are never written.

At batch 128 with captions of 16 words c would take half a gigabyte in bfloat16, four times what the nodes
take. Forward, a program takes one image and a block of words, computes c a few columns at a time, and
multiplies their squared difference with the same columns of P right away.

Backward, with h the gradient of z before its normalisation, e = 2 (c - w) ∘ Pᵀh is computed likewise:

    dw = -sum over images of e,   da = V e,   dV = Aᵀ e,   dP = sum of h (c - w)²ᵀ,   db = sum of h

These are sums over words, over images and over the width, so no order of loops suits them all. So e and (c - w)² are
written for a bounded number of words at a time, and the sums across programs are matrix products and one more kernel.

Several projections write their vectors one after the other into one tensor, without a concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sremkit.ops.functional import EPSILON, differentiable_gradients, without_autocast
from sremkit.ops.node_projection import node_projection_reference
from sremkit.ops.triton.triton_utils import block, jit, precision, tl, to_contiguous

_BACKWARD_BYTES = 288 << 20  # for each of the two wide buffers of the backward pass

# Block sizes and schedules by the bytes of an element: float32's blocks are twice as large in memory.
FORWARD = {
    2: {"BLOCK_W": 128, "BLOCK_D": 64, "num_warps": 8, "num_stages": 3},
    4: {"BLOCK_W": 64, "BLOCK_D": 32, "num_warps": 8, "num_stages": 2},
}
BACKWARD = {
    2: {"BLOCK_W": 64, "BLOCK_D": 32, "num_warps": 4, "num_stages": 3},
    4: {"BLOCK_W": 32, "BLOCK_D": 32, "num_warps": 8, "num_stages": 2},
}


class Projected(NamedTuple):
    """The inputs of one projection."""

    attention: Tensor  # (n, r, W), scaled so that the attended vectors have unit norm
    regions: Tensor  # (n, r, d)
    words: Tensor  # (W, d)
    weight: Tensor  # (s, d)
    bias: Tensor  # (s,)


def packed_nodes(*parts: Projected, dtype: torch.dtype) -> Tensor:
    """Nodes (n, W, s) of W words with n images; those of all parts one after the other.

    Args:
        dtype: of the products and of the result; sums and norms are float32.
    """
    return _NodeProjection.apply(*(tensor for part in parts for tensor in part), dtype)


class _NodeProjection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        *tensors, dtype = args
        parts = _parts(tensors)
        n, s = len(parts[0].regions), len(parts[0].weight)
        converted = [_converted(dtype, part) for part in parts]
        out = torch.empty(n, sum(len(p.words) for p in parts), s, dtype=dtype, device=parts[0].regions.device)
        lengths = [_run_forward(p, rows) for p, rows in zip(converted, _rows_of(out, parts), strict=True)]
        ctx.save_for_backward(out, *tensors, *(t for p in converted for t in p), *lengths)
        ctx.num_tensors = len(tensors)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        out, *saved = ctx.saved_tensors
        k = ctx.num_tensors
        given, converted, lengths = saved[:k], _parts(saved[k : 2 * k]), saved[2 * k :]
        if torch.is_grad_enabled():
            return differentiable_gradients(ctx, _reference, given, upstream)
        rows = _rows_of(upstream, converted), _rows_of(out, converted)
        inputs = zip(converted, _parts(given), *rows, lengths, strict=True)
        with without_autocast(upstream):
            found = [gradient for part in inputs for gradient in _run_backward(*part)]
        return *(g.to(x.dtype) for g, x in zip(found, given, strict=True)), None


def _parts(tensors: Sequence[Tensor]) -> list[Projected]:
    return [Projected(*tensors[k : k + 5]) for k in range(0, len(tensors), 5)]


def _converted(dtype: torch.dtype, part: Projected) -> Projected:
    attention, regions, words, weight = to_contiguous(dtype, *part[:4])
    return Projected(attention, regions, words, weight, part.bias.contiguous())


def _reference(*tensors: Tensor) -> Tensor:
    return torch.cat([node_projection_reference(*part) for part in _parts(tensors)], dim=1)


def _rows_of(nodes: Tensor, parts: Sequence[Projected]) -> tuple[Tensor, ...]:
    """The rows of each part, as views."""
    return nodes.split([len(part.words) for part in parts], dim=1)


def _run_forward(part: Projected, out: Tensor) -> Tensor:
    """Writes the nodes to `out` (n, W, s); returns the factors (n, W) that normalised them."""
    (n, r, num_words), s = part.attention.shape, len(part.weight)
    inverse = out.new_empty(n, num_words, dtype=torch.float32)
    if out.numel():
        arguments = (*part, out, inverse, out.stride(0), num_words, r, s, EPSILON)
        blocks = FORWARD[out.element_size()]
        project[_grid(blocks, num_words, n)](*arguments, **_constants(part), **blocks)
    return inverse


def _run_backward(
    part: Projected, given: Projected, upstream: Tensor, out: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the inputs of `part`; those that a kernel writes have the dtypes of `given`."""
    attention, regions, words, weight, _bias = part
    (n, r, num_words), (s, d) = attention.shape, weight.shape
    # With several parts upstream is a slice: only its first stride may be larger.
    if upstream.stride()[1:] != (s, 1):
        upstream = upstream.contiguous()
    by_attention = torch.empty_like(attention, dtype=given.attention.dtype)
    by_words = (torch.empty_like if n else torch.zeros_like)(words, dtype=given.words.dtype)
    by_weight = torch.zeros_like(weight, dtype=torch.float32)
    by_bias = by_weight.new_zeros(s)
    by_regions: Tensor | None = None
    blocks = BACKWARD[out.element_size()]
    num_at_a_time = _words_at_a_time(num_words, n * d * out.element_size())
    for first in range(0, num_words if n else 0, num_at_a_time):
        here = min(num_at_a_time, num_words - first)
        by_sum, squares, by_context = (attention.new_empty(n, here, k) for k in (s, d, d))
        bias_parts = by_bias.new_empty(n * _grid(blocks, here, n)[0], s)  # a row for each program
        arguments = (
            upstream, out, inverse, attention, regions, words, weight,
            by_sum, bias_parts, by_attention, squares, by_context,
            upstream.stride(0), out.stride(0), num_words, first, here, r, s,
        )  # fmt: skip
        project_back[_grid(blocks, here, n)](*arguments, **_constants(part), **blocks)
        minus_sum_over_images(by_context, by_words[first : first + here])
        by_these = attention[:, :, first : first + here] @ by_context
        # A sum of two is rounded no more often than in float32; a sum of more would be.
        if by_regions is None:
            by_regions = by_these if num_words <= 2 * num_at_a_time else by_these.float()
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


def _words_at_a_time(num_words: int, bytes_a_word: int) -> int:
    """How many words the backward pass takes at a time: whole blocks, in nearly equal parts."""
    most = max(128, _BACKWARD_BYTES // max(1, bytes_a_word))
    times = -(-num_words // most) or 1
    return -(-num_words // (128 * times)) * 128 or 128


def _grid(blocks: dict[str, int], num_words: int, num_images: int) -> tuple[int, int]:
    return -(-num_words // blocks["BLOCK_W"]), num_images


@jit(do_not_specialize=["num_words"])
def project(
    attention, regions, words, weight, bias, out, inverse,
    out_stride, num_words, num_regions, sim_dim, epsilon,
    WIDTH: tl.constexpr, REGIONS: tl.constexpr, SIM: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward: one image and BLOCK_W words a program."""
    image = tl.program_id(1).to(tl.int64)
    w = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    r = tl.arange(0, REGIONS)
    s = tl.arange(0, SIM)
    has_word, has_region, has_sim = w < num_words, r < num_regions, s < sim_dim
    attention += image * num_regions * num_words
    regions += image * num_regions * WIDTH
    a = tl.load(
        attention + r[None, :] * num_words + w[:, None],
        mask=has_word[:, None] & has_region[None, :],
        other=0.0,
    )  # (BLOCK_W, REGIONS)
    total = tl.full((BLOCK_W, SIM), 0.0, tl.float32)
    for start in range(0, WIDTH, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        inside = d < WIDTH
        v = tl.load(regions + r[:, None] * WIDTH + d[None, :], mask=has_region[:, None] & inside[None, :], other=0.0)
        x = tl.load(words + w[:, None] * WIDTH + d[None, :], mask=has_word[:, None] & inside[None, :], other=0.0)
        p = tl.load(weight + s[None, :] * WIDTH + d[:, None], mask=has_sim[None, :] & inside[:, None], other=0.0)
        difference = tl.dot(a, v, input_precision=PRECISION) - x.to(tl.float32)
        square = (difference * difference).to(p.dtype)
        total = tl.dot(square, p, total, input_precision=PRECISION)
    total += tl.load(bias + s, mask=has_sim, other=0.0).to(tl.float32)[None, :]
    scale = 1.0 / (tl.sqrt(tl.sum(total * total, axis=1)) + epsilon)
    tl.store(inverse + image * num_words + w, scale, mask=has_word)
    tl.store(
        out + image * out_stride + w[:, None] * sim_dim + s[None, :],
        (total * scale[:, None]).to(out.dtype.element_ty),
        mask=has_word[:, None] & has_sim[None, :],
    )


@jit(do_not_specialize=["num_words", "first_word", "num_here"])
def project_back(
    upstream, out, inverse, attention, regions, words, weight,
    by_sum, by_bias, by_attention, squares, by_context,
    upstream_stride, out_stride, num_words, first_word, num_here, num_regions, sim_dim,
    WIDTH: tl.constexpr, REGIONS: tl.constexpr, SIM: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward for the words first_word ... first_word + num_here: h, da, (c - w)² and e."""
    image = tl.program_id(1).to(tl.int64)
    here = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    w = first_word + here
    r = tl.arange(0, REGIONS)
    s = tl.arange(0, SIM)
    has_word, has_region, has_sim = here < num_here, r < num_regions, s < sim_dim
    word_sim = has_word[:, None] & has_sim[None, :]
    attention += image * num_regions * num_words
    by_attention += image * num_regions * num_words
    regions += image * num_regions * WIDTH
    row = image * num_words + w  # among all words
    row_here = image * num_here + here  # among the words of this call

    g = tl.load(upstream + image * upstream_stride + w[:, None] * sim_dim + s[None, :], mask=word_sim, other=0.0)
    g = g.to(tl.float32)
    z = tl.load(out + image * out_stride + w[:, None] * sim_dim + s[None, :], mask=word_sim, other=0.0)
    z = z.to(tl.float32)
    scale = tl.load(inverse + row, mask=has_word, other=0.0)
    h = (g - z * tl.sum(g * z, axis=1)[:, None]) * scale[:, None]
    part = image * tl.num_programs(0) + tl.program_id(0)
    tl.store(by_bias + part * sim_dim + s, tl.sum(h, axis=0), mask=has_sim)
    h = h.to(by_sum.dtype.element_ty)
    tl.store(by_sum + row_here[:, None] * sim_dim + s[None, :], h, mask=word_sim)

    a_places = r[None, :] * num_words + w[:, None]
    a_mask = has_word[:, None] & has_region[None, :]
    a = tl.load(attention + a_places, mask=a_mask, other=0.0)  # (BLOCK_W, REGIONS)
    by_a = tl.full((BLOCK_W, REGIONS), 0.0, tl.float32)
    for start in range(0, WIDTH, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        inside = d < WIDTH
        word_width = has_word[:, None] & inside[None, :]
        v = tl.load(regions + r[:, None] * WIDTH + d[None, :], mask=has_region[:, None] & inside[None, :], other=0.0)
        x = tl.load(words + w[:, None] * WIDTH + d[None, :], mask=word_width, other=0.0)
        p = tl.load(weight + s[:, None] * WIDTH + d[None, :], mask=has_sim[:, None] & inside[None, :], other=0.0)
        difference = tl.dot(a, v, input_precision=PRECISION) - x.to(tl.float32)
        e = (2.0 * difference * tl.dot(h, p, input_precision=PRECISION)).to(p.dtype)
        places = row_here[:, None] * WIDTH + d[None, :]
        tl.store(squares + places, (difference * difference).to(p.dtype), mask=word_width)
        tl.store(by_context + places, e, mask=word_width)
        by_a = tl.dot(e, tl.trans(v), by_a, input_precision=PRECISION)
    tl.store(by_attention + a_places, by_a.to(by_attention.dtype.element_ty), mask=a_mask)


def minus_sum_over_images(values: Tensor, out: Tensor) -> None:
    """Writes minus the sum of `values` (n, W, d) over the images, the gradient of the words, to `out` (W, d)."""
    columns = out.numel()
    add_images[(-(-columns // 1024),)](
        values, out, columns, IMAGES=len(values), ROWS=4, COLUMNS=1024, num_warps=4, num_stages=3
    )


@jit
def add_images(values, out, num_columns, IMAGES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Minus the sum over images, COLUMNS numbers a program."""
    # The number of columns is specialised: only when it is known to be a multiple of 16 are loads wide.
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < num_columns
    total = tl.full((ROWS, COLUMNS), 0.0, tl.float32)  # summed over its rows once, at the end
    for start in range(0, IMAGES, ROWS):
        image = start + tl.arange(0, ROWS)
        x = tl.load(
            values + image[:, None].to(tl.int64) * num_columns + column[None, :],
            mask=(image < IMAGES)[:, None] & inside[None, :],
            other=0.0,
        )
        total += x.to(tl.float32)
    tl.store(out + column, -tl.sum(total, axis=0).to(out.dtype.element_ty), mask=inside)
