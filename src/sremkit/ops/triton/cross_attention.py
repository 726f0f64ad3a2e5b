"""Triton backend of `unit_attention`, over packed queries: words are the queries and regions the contexts, or reversed.

In plain PyTorch it is a dozen passes over tensors (images, regions, words), each of which is kept for the
gradient. Here the affinities are read once, and once more in the backward pass, which recomputes the
attention. Everything inside is float32; the products of the backward pass that PyTorch computes, G · out and
the gradient of G, have the dtype of `out`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sremkit.ops.cross_attention import packed_reference
from sremkit.ops.functional import EPSILON, differentiable_gradients, without_autocast
from sremkit.ops.packing import Packing
from sremkit.ops.triton.triton_utils import block, jit, precision, short_block, tl, zero_spare_words

_WARPS, _WARPS_BACK = 4, 8


def packed_attention(
    affinity: Tensor,
    gram: Tensor,
    region_mask: Tensor,
    packing: Packing,
    *,
    scale: float,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """As `packed_reference`, (n, r, W) in the given dtype; affinities are 0 for absent regions."""
    return _PackedAttention.apply(affinity, gram, region_mask, packing, scale, dtype)


@jit
def _attention(x, has_region, scale, epsilon):
    """From affinities (REGIONS, WORDS): 1 / (‖c‖ + ε) of the clipped ones c, these times it, and the attention."""
    clipped = tl.maximum(x, 0.1 * x)
    inverse_norm = 1.0 / (tl.sqrt(tl.sum(clipped * clipped, axis=1)) + epsilon)
    unit = clipped * inverse_norm[:, None]
    scores = unit * (1.4426950408889634 * scale)  # log2 e: powers of two are cheaper
    scores = tl.where(has_region[:, None], scores, -1e30)
    power = tl.exp2(scores - tl.max(scores, axis=0)[None, :])
    a = power * (1.0 / tl.sum(power, axis=0))[None, :]
    return inverse_norm, unit, tl.where(has_region[:, None], a, 0.0)


@jit
def _place(region_mask, cu_seqlens, num_words, num_regions, REGIONS: tl.constexpr):
    """This program's image; which regions are in the tensors, and which in the image; the number of words of its
    caption; the offset of the first word, and the offsets of the regions from there."""
    image = tl.program_id(1).to(tl.int64)
    r = tl.arange(0, REGIONS)
    inside = r < num_regions
    has_region = tl.load(region_mask + image * num_regions + r, mask=inside, other=0) != 0
    first = tl.load(cu_seqlens + tl.program_id(0))
    count = tl.load(cu_seqlens + tl.program_id(0) + 1) - first
    return image, inside, has_region, count, image * num_regions * num_words + first, r * num_words


@jit
def _caption(
    affinity, out, rows, inside, has_region, count, g, scale, epsilon,
    WORDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward for a caption of up to WORDS words; the pointers are at its first affinities."""
    w = tl.arange(0, WORDS)
    places = rows[:, None] + w[None, :]
    mask = inside[:, None] & (w < count)[None, :]
    x = tl.load(affinity + places, mask=mask, other=0.0).to(tl.float32)
    _inverse_norm, _unit, a = _attention(x, has_region, scale, epsilon)
    square = tl.sum(a * tl.dot(g, a, input_precision=PRECISION), axis=0)  # aᵀ G a
    inverse = 1.0 / (tl.sqrt(tl.maximum(square, epsilon * epsilon)) + epsilon)
    tl.store(out + places, (a * inverse[None, :]).to(out.dtype.element_ty), mask=mask)


@jit(do_not_specialize=["num_words"])
def attend_regions(
    affinity, gram, region_mask, out, cu_seqlens, num_words, num_regions, scale, epsilon,
    REGIONS: tl.constexpr, SHORT: tl.constexpr, WORDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward: one image and one caption a program."""
    image, inside, has_region, count, begin, rows = _place(region_mask, cu_seqlens, num_words, num_regions, REGIONS)
    r = tl.arange(0, REGIONS)
    g = tl.load(
        gram + image * num_regions * num_regions + (r[:, None] * num_regions + r[None, :]),
        mask=inside[:, None] & inside[None, :],
        other=0.0,
    )
    affinity, out = affinity + begin, out + begin
    if count <= SHORT:
        _caption(affinity, out, rows, inside, has_region, count, g, scale, epsilon, SHORT, PRECISION)
    else:
        _caption(affinity, out, rows, inside, has_region, count, g, scale, epsilon, WORDS, PRECISION)


@jit
def _caption_back(
    upstream, affinity, reached, by_affinity, by_length, rows, inside, has_region, count, scale, epsilon,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Backward for a caption of up to WORDS words."""
    w = tl.arange(0, WORDS)
    places = rows[:, None] + w[None, :]
    mask = inside[:, None] & (w < count)[None, :]
    x = tl.load(affinity + places, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(upstream + places, mask=mask, other=0.0).to(tl.float32)
    d = tl.load(reached + places, mask=mask, other=0.0).to(tl.float32)
    inverse_norm, unit, a = _attention(x, has_region, scale, epsilon)
    # out = a / ‖a‖ with ‖a‖² = aᵀ G a, and d = G out: ‖a‖ = a · d. The gradient has no component along a: a norm that
    # follows from a removes it, and where the norm is only the floor, the softmax does.
    length = tl.sum(a * d, axis=0)
    has_length = length > epsilon
    inverse = 1.0 / (tl.maximum(length, epsilon) + epsilon)
    along_a = tl.sum(up * a, axis=0)
    along = tl.where(has_length, along_a * inverse, 0.0)
    tl.store(by_length + places, (a * (-0.5 * along * inverse)[None, :]).to(by_length.dtype.element_ty), mask=mask)
    by_a = up - d * along[None, :] - tl.where(has_length, 0.0, along_a)[None, :]
    by_unit = a * by_a * inverse[None, :]
    # unit = c / (‖c‖ + ε): c's gradient has a term from the norm, where 1 + ε / (‖c‖ + ε) approximates 1 + ε / ‖c‖.
    along_unit = tl.sum(by_unit * unit, axis=1) * (1.0 + epsilon * inverse_norm)
    by_clipped = (by_unit - unit * along_unit[:, None]) * (scale * inverse_norm)[:, None]
    by_x = tl.where(x > 0, by_clipped, 0.1 * by_clipped)
    tl.store(by_affinity + places, by_x.to(by_affinity.dtype.element_ty), mask=mask)


@jit(do_not_specialize=["num_words"])
def attend_regions_back(
    upstream, affinity, reached, region_mask, by_affinity, by_length, cu_seqlens,
    num_words, num_regions, scale, epsilon,
    REGIONS: tl.constexpr, SHORT: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Backward: one image and one caption a program.

    The Gram matrix's gradient is a sum over all words of an image: `by_length` times the attention that came out.
    """
    _image, inside, has_region, count, begin, rows = _place(region_mask, cu_seqlens, num_words, num_regions, REGIONS)
    upstream, affinity, reached = upstream + begin, affinity + begin, reached + begin
    by_affinity, by_length = by_affinity + begin, by_length + begin
    if count <= SHORT:
        _caption_back(
            upstream, affinity, reached, by_affinity, by_length, rows, inside, has_region, count, scale, epsilon,
            SHORT,
        )  # fmt: skip
    else:
        _caption_back(
            upstream, affinity, reached, by_affinity, by_length, rows, inside, has_region, count, scale, epsilon,
            WORDS,
        )  # fmt: skip


def _precision(dtype: torch.dtype) -> str:
    """TF32 for affinities of half precision, which have fewer digits."""
    return "tf32" if dtype.itemsize == 2 else precision(torch.float32)


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        affinity: Tensor,
        gram: Tensor,
        region_mask: Tensor,
        packing: Packing,
        scale: float,
        dtype: torch.dtype,
    ) -> Tensor:
        x, g, present = affinity.contiguous(), gram.float().contiguous(), region_mask.to(torch.uint8)
        out = torch.empty_like(x, dtype=dtype)
        n, r, num_words = x.shape
        if out.numel():
            attend_regions[(packing.num_texts, n)](
                x, g, present.contiguous(), out, packing.cu_seqlens, num_words, r, float(scale), EPSILON,
                **_blocks(r, packing), PRECISION=_precision(x.dtype), num_warps=_WARPS,
            )  # fmt: skip
            zero_spare_words(packing, out)
        ctx.save_for_backward(affinity, gram, region_mask, out)
        ctx.packing, ctx.scale = packing, scale
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        affinity, gram, region_mask, out = ctx.saved_tensors
        packing, scale = ctx.packing, ctx.scale
        if torch.is_grad_enabled():
            constants = region_mask, packing, scale
            return differentiable_gradients(ctx, packed_reference, (affinity, gram), upstream, *constants)
        x, present = affinity.contiguous(), region_mask.to(torch.uint8)
        n, r, num_words = x.shape
        by_x, by_length = torch.empty_like(x), torch.empty_like(out)
        with without_autocast(x):
            if by_x.numel():
                attend_regions_back[(packing.num_texts, n)](
                    upstream.contiguous(), x, gram.to(out.dtype) @ out, present.contiguous(), by_x, by_length,
                    packing.cu_seqlens, num_words, r, float(scale), EPSILON,
                    **_blocks(r, packing), num_warps=_WARPS_BACK,
                )  # fmt: skip
                zero_spare_words(packing, by_x, by_length)
            by_gram = by_length @ out.transpose(1, 2)
        return by_x, by_gram.to(gram.dtype), None, None, None, None


def _blocks(num_regions: int, packing: Packing) -> dict[str, Any]:
    words = block(packing.max_seqlen)
    return {"REGIONS": block(num_regions), "SHORT": short_block(words), "WORDS": words, "num_stages": 1}
