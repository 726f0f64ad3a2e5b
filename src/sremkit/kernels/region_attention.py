"""Attention of every word to the regions of every image, ready to be multiplied with the regions.

    s' = LReLU(s) / ‖LReLU(s)‖ over the words of a caption,   a = softmax over regions of scale · s',
    out = a / ‖sum_k a_k v_k‖,   whose squared length is aᵀ G a with the regions' Gram matrix G

In plain PyTorch these are a dozen passes over (images, regions, words) numbers, each of which has to be kept
for the gradient. Here the affinities s are read once, and once more in the backward pass, which computes the attention
again. Everything inside is float32; what the backward pass has the library multiply, G · out and the gradient by G, has
the format of `out`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.kernels.language import EPSILON, block, jit, precision, short_block, tl
from sremkit.kernels.packing import Packing
from sremkit.kernels.tails import clear_last_words
from sremkit.kernels.twice import recorded_gradients

_WARPS, _WARPS_BACK = 4, 8


def region_attention(
    affinity: Tensor,
    gram: Tensor,
    region_mask: Tensor,
    packing: Packing,
    *,
    scale: float,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Attention (n, r, W) in the number format `dtype`, by kernels.

    Args:
        affinity: (n, r, W) products of regions and words; 0 for absent regions. A few words may have been
            added at the end, to which the attention is 0.
        gram: (n, r, r) products of regions with each other.
        region_mask: (n, r) bool
    """
    return _RegionAttention.apply(affinity, gram, region_mask, packing, scale, dtype)


def plain_region_attention(
    affinity: Tensor, gram: Tensor, region_mask: Tensor, packing: Packing, *, scale: float
) -> Tensor:
    """The same in plain PyTorch."""
    added = affinity.shape[2] - packing.num_words
    text = packing.text_of_word
    of_nobody = text == packing.num_texts
    affinity = affinity[:, :, : packing.num_words].masked_fill(of_nobody, 0.0)
    affinity = affinity.float() if affinity.element_size() < 4 else affinity
    clipped = F.leaky_relu(affinity, 0.1)
    square = clipped.new_zeros(*clipped.shape[:2], packing.num_texts + 1)
    square = square.index_add(2, text, clipped.square())
    norm = square.clamp_min(EPSILON**4).sqrt() + EPSILON  # (n, r, m)
    present = region_mask.unsqueeze(2)
    scores = (scale * clipped / norm.index_select(2, text)).masked_fill(
        ~present, torch.finfo(clipped.dtype).min
    )
    attention = scores.softmax(dim=1).masked_fill(~present, 0.0)
    length = (attention * (gram @ attention)).sum(dim=1, keepdim=True).clamp_min(EPSILON**2).sqrt()
    return F.pad((attention / (length + EPSILON)).masked_fill(of_nobody, 0.0), (0, added))


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
def _place(region_mask, starts, num_words, num_regions, REGIONS: tl.constexpr):
    """This program's image; which regions are in the tensors, and which in the image; how many words its caption has;
    where the first one's numbers begin, and how far those of each region lie from there."""
    image = tl.program_id(1).to(tl.int64)
    r = tl.arange(0, REGIONS)
    inside = r < num_regions
    has_region = tl.load(region_mask + image * num_regions + r, mask=inside, other=0) != 0
    first = tl.load(starts + tl.program_id(0))
    count = tl.load(starts + tl.program_id(0) + 1) - first
    return image, inside, has_region, count, image * num_regions * num_words + first, r * num_words


@jit
def _caption(
    affinity, out, rows, inside, has_region, count, g, scale, epsilon,
    WORDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward for a caption of up to WORDS words, whose first affinities the pointers are at."""
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
    affinity, gram, region_mask, out, starts, num_words, num_regions, scale, epsilon,
    REGIONS: tl.constexpr, SHORT: tl.constexpr, WORDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward: one image and one caption a program."""
    image, inside, has_region, count, begin, rows = _place(
        region_mask, starts, num_words, num_regions, REGIONS
    )
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
    # out = a / ‖a‖ with ‖a‖² = aᵀ G a, and d = G out: ‖a‖ = a · d. What goes back has no part along a: a length that
    # follows from a takes it out, and where the length is only the floor, the softmax does.
    length = tl.sum(a * d, axis=0)
    has_length = length > epsilon
    inverse = 1.0 / (tl.maximum(length, epsilon) + epsilon)
    along_a = tl.sum(up * a, axis=0)
    along = tl.where(has_length, along_a * inverse, 0.0)
    tl.store(
        by_length + places, (a * (-0.5 * along * inverse)[None, :]).to(by_length.dtype.element_ty), mask=mask
    )
    by_a = up - d * along[None, :] - tl.where(has_length, 0.0, along_a)[None, :]
    by_unit = a * by_a * inverse[None, :]
    # unit = c / (‖c‖ + ε): c's gradient has a part by the norm, where 1 + ε / (‖c‖ + ε) stands for 1 + ε / ‖c‖.
    along_unit = tl.sum(by_unit * unit, axis=1) * (1.0 + epsilon * inverse_norm)
    by_clipped = (by_unit - unit * along_unit[:, None]) * (scale * inverse_norm)[:, None]
    by_x = tl.where(x > 0, by_clipped, 0.1 * by_clipped)
    tl.store(by_affinity + places, by_x.to(by_affinity.dtype.element_ty), mask=mask)


@jit(do_not_specialize=["num_words"])
def attend_regions_back(
    upstream, affinity, reached, region_mask, by_affinity, by_length, starts, num_words, num_regions, scale, epsilon,
    REGIONS: tl.constexpr, SHORT: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Backward: one image and one caption a program.

    The Gram matrix's gradient is a sum over all words of an image: `by_length` times the attention that came out.
    """
    _image, inside, has_region, count, begin, rows = _place(
        region_mask, starts, num_words, num_regions, REGIONS
    )
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
    """Affinities of half precision have fewer digits than a TF32 product."""
    return "tf32" if dtype.itemsize == 2 else precision(torch.float32)


class _RegionAttention(torch.autograd.Function):
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
                x, g, present.contiguous(), out, packing.starts, num_words, r, float(scale), EPSILON,
                **_blocks(r, packing), PRECISION=_precision(x.dtype), num_warps=_WARPS,
            )  # fmt: skip
            clear_last_words(packing, out)
        ctx.save_for_backward(affinity, gram, region_mask, out)
        ctx.packing, ctx.scale = packing, scale
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        affinity, gram, region_mask, out = ctx.saved_tensors
        packing, scale = ctx.packing, ctx.scale
        if torch.is_grad_enabled():
            needed = ctx.needs_input_grad[:2]
            found = recorded_gradients(
                lambda x, g: plain_region_attention(x, g, region_mask, packing, scale=scale),
                (affinity, gram),
                upstream,
                needed,
            )
            return found[0], found[1], None, None, None, None
        x, present = affinity.contiguous(), region_mask.to(torch.uint8)
        n, r, num_words = x.shape
        by_x, by_length = torch.empty_like(x), torch.empty_like(out)
        with torch.autocast(device_type=x.device.type, enabled=False):
            if by_x.numel():
                attend_regions_back[(packing.num_texts, n)](
                    upstream.contiguous(), x, gram.to(out.dtype) @ out, present.contiguous(), by_x, by_length,
                    packing.starts, num_words, r, float(scale), EPSILON, **_blocks(r, packing), num_warps=_WARPS_BACK,
                )  # fmt: skip
                clear_last_words(packing, by_x, by_length)
            by_gram = by_length @ out.transpose(1, 2)
        return by_x, by_gram.to(gram.dtype), None, None, None, None


def _blocks(num_regions: int, packing: Packing) -> dict[str, Any]:
    words = block(packing.longest)
    return {
        "REGIONS": block(num_regions),
        "SHORT": short_block(words),
        "WORDS": words,
        "num_stages": 1,
    }
