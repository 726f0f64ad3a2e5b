"""Attention of every word to the regions of every image, ready to be multiplied with the regions.

    s' = LReLU(s) / ‖LReLU(s)‖ over the words of a caption,   a = softmax over regions of scale · s',
    out = a / ‖sum_k a_k v_k‖,   whose squared length is aᵀ G a with the regions' Gram matrix G

In plain PyTorch these are a dozen passes over (images, regions, words) numbers, each of which has to be kept
for the gradient. Here the affinities s are read once, and once more in the backward pass, which computes the
rest again. Everything inside is float32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.kernels.language import EPSILON, block, jit, precision, tl
from sremkit.kernels.packing import Packing
from sremkit.kernels.tails import clear_last_words
from sremkit.kernels.twice import recorded_gradients

_WARPS = 4  # two spill registers, eight wait for each other
_PARTS = 16  # programs an image in the backward pass; each adds up a Gram gradient of its own


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
def _attention(x, g, has_region, scale, epsilon, PRECISION: tl.constexpr):
    """From affinities (REGIONS, WORDS) and the Gram matrix: every stage of the formula."""
    clipped = tl.where(x > 0, x, 0.1 * x)
    norm = tl.sqrt(tl.sum(clipped * clipped, axis=1))
    scores = scale * clipped / (norm + epsilon)[:, None]
    scores = tl.where(has_region[:, None], scores, -1e30)
    exponent = tl.exp(scores - tl.max(scores, axis=0)[None, :])
    a = tl.where(has_region[:, None], exponent / tl.sum(exponent, axis=0)[None, :], 0.0)
    reached = tl.dot(g, a, input_precision=PRECISION)  # G a
    square = tl.sum(a * reached, axis=0)
    length = tl.sqrt(tl.maximum(square, epsilon * epsilon))
    return clipped, norm, a, reached, square, length


@jit(do_not_specialize=["num_words", "num_texts"])
def attend_regions(
    affinity, gram, region_mask, out, starts, num_words, num_texts, num_regions, scale, epsilon,
    REGIONS: tl.constexpr, WORDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward: one image and one caption a program."""
    text = tl.program_id(0)
    image = tl.program_id(1).to(tl.int64)
    r, w = tl.arange(0, REGIONS), tl.arange(0, WORDS)
    first = tl.load(starts + text)
    has_word = w < tl.load(starts + text + 1) - first
    inside = r < num_regions
    has_region = tl.load(region_mask + image * num_regions + r, mask=inside, other=0) != 0
    g = tl.load(
        gram + image * num_regions * num_regions + r[:, None] * num_regions + r[None, :],
        mask=inside[:, None] & inside[None, :],
        other=0.0,
    )
    places = image * num_regions * num_words + r[:, None] * num_words + first + w[None, :]
    mask = inside[:, None] & has_word[None, :]
    x = tl.load(affinity + places, mask=mask, other=0.0).to(tl.float32)
    _clipped, _norm, a, _reached, _square, length = _attention(x, g, has_region, scale, epsilon, PRECISION)
    tl.store(out + places, (a / (length + epsilon)[None, :]).to(out.dtype.element_ty), mask=mask)


@jit(do_not_specialize=["num_words", "num_texts"])
def attend_regions_back(
    upstream, affinity, gram, region_mask, by_affinity, by_gram, starts,
    num_words, num_texts, num_regions, scale, epsilon,
    PARTS: tl.constexpr, REGIONS: tl.constexpr, WORDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward: one image and every PARTS-th caption a program."""
    part = tl.program_id(0)
    image = tl.program_id(1).to(tl.int64)
    r, w = tl.arange(0, REGIONS), tl.arange(0, WORDS)
    inside = r < num_regions
    has_region = tl.load(region_mask + image * num_regions + r, mask=inside, other=0) != 0
    square_mask = inside[:, None] & inside[None, :]
    square_places = r[:, None] * num_regions + r[None, :]
    g = tl.load(gram + image * num_regions * num_regions + square_places, mask=square_mask, other=0.0)
    by_g = tl.full((REGIONS, REGIONS), 0.0, tl.float32)
    text = part
    while text < num_texts:
        first = tl.load(starts + text)
        has_word = w < tl.load(starts + text + 1) - first
        places = image * num_regions * num_words + r[:, None] * num_words + first + w[None, :]
        mask = inside[:, None] & has_word[None, :]
        x = tl.load(affinity + places, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(upstream + places, mask=mask, other=0.0).to(tl.float32)
        clipped, norm, a, reached, square, length = _attention(x, g, has_region, scale, epsilon, PRECISION)
        inverse = 1.0 / (length + epsilon)
        # out = a / (length + ε), length = sqrt(aᵀ G a): a's gradient has a part by the length.
        by_square = -tl.sum(up * a, axis=0) * inverse * inverse / (2.0 * length)
        by_square = tl.where(square > epsilon * epsilon, by_square, 0.0)
        by_g = tl.dot(a * by_square[None, :], tl.trans(a), by_g, input_precision=PRECISION)
        by_a = up * inverse[None, :] + 2.0 * by_square[None, :] * reached
        by_unit = scale * a * (by_a - tl.sum(a * by_a, axis=0)[None, :])
        # The norm over the words: u = c / (‖c‖ + ε).
        inverse_norm = 1.0 / (norm + epsilon)
        along = tl.sum(by_unit * clipped, axis=1) * inverse_norm * inverse_norm
        along = tl.where(norm > 0.0, along / tl.maximum(norm, 1e-30), 0.0)
        by_clipped = by_unit * inverse_norm[:, None] - clipped * along[:, None]
        by_x = tl.where(x > 0, by_clipped, 0.1 * by_clipped)
        tl.store(by_affinity + places, by_x.to(by_affinity.dtype.element_ty), mask=mask)
        text += PARTS
    by_gram += (image * PARTS + part) * num_regions * num_regions
    tl.store(by_gram + square_places, by_g, mask=square_mask)


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
                x, g, present.contiguous(), out, packing.starts,
                num_words, packing.num_texts, r, float(scale), EPSILON, **_blocks(r, packing, x.dtype),
            )  # fmt: skip
            clear_last_words(packing, out)
        ctx.save_for_backward(affinity, gram, region_mask)
        ctx.packing, ctx.scale = packing, scale
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        affinity, gram, region_mask = ctx.saved_tensors
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
        x, g, present = affinity.contiguous(), gram.float().contiguous(), region_mask.to(torch.uint8)
        n, r, num_words = x.shape
        by_x = torch.empty_like(x)
        by_g = g.new_empty(n, _PARTS, r, r)
        if by_x.numel():
            attend_regions_back[(_PARTS, n)](
                upstream.contiguous(), x, g, present.contiguous(), by_x, by_g, packing.starts,
                num_words, packing.num_texts, r, float(scale), EPSILON, PARTS=_PARTS, **_blocks(r, packing, x.dtype),
            )  # fmt: skip
            clear_last_words(packing, by_x)
        else:
            by_g.zero_()
        return by_x, by_g.sum(dim=1).to(gram.dtype), None, None, None, None


def _blocks(num_regions: int, packing: Packing, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "REGIONS": block(num_regions),
        "WORDS": block(packing.longest),
        # Affinities of half precision have fewer digits than a TF32 product.
        "PRECISION": "tf32" if dtype.itemsize == 2 else precision(torch.float32),
        "num_warps": _WARPS,
        "num_stages": 1,
    }
