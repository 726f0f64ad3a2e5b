"""The similarity vector of every word with every image, without writing the attended vectors anywhere.

    z = ℓ2( P (c - w)² + b ),   c = sum_k a_k v_k

c is as wide as the embeddings, one for each word and image: at batch 128 with captions of 16 words half a
gigabyte in bfloat16, four times what z takes. Forward, a program takes one image and a block of words, forms
c a few columns at a time, and multiplies their squared difference with the same columns of P at once.

Backward, with h the gradient of z before its normalisation, e = 2 (c - w) ∘ Pᵀh is formed likewise:

    dw = -sum over images of e,   da = V e,   dV = Aᵀ e,   dP = sum of h (c - w)²ᵀ,   db = sum of h

These are sums over words, over images and over the width, so no order of loops suits them all. Computing e
once for each would take twice the products. So e and (c - w)² are written for a bounded number of words at a
time, and the sums that cross programs are ordinary matrix products. Nothing is added atomically.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.kernels.language import EPSILON, block, in_format, jit, precision, tl, triton, tunes
from sremkit.kernels.twice import recorded_gradients

_BACKWARD_BYTES = 256 << 20  # for each of the two wide buffers of the backward pass


def node_projection(
    attention: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor, *, dtype: torch.dtype
) -> Tensor:
    """Similarity vectors (n, W, s) of W words with n images, by kernels.

    Args:
        attention: (n, r, W), scaled so that the attended vectors have unit length.
        regions: (n, r, d)
        words: (W, d)
        weight, bias: (s, d) and (s,)
        dtype: number format of the products and of the result; sums and norms are float32.
    """
    return _NodeProjection.apply(attention, regions, words, weight, bias, dtype)


def plain_node_projection(
    attention: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """The same in plain PyTorch, which forms the attended vectors."""
    difference = torch.baddbmm(-words.unsqueeze(0), attention.transpose(1, 2), regions)  # (n, W, d)
    z = F.linear(difference.square(), weight, bias)
    square = z.square().sum(dim=-1, keepdim=True).clamp_min(EPSILON**4)
    return z / (square.sqrt() + EPSILON)


class Blocks(NamedTuple):
    """How a kernel's work is cut and scheduled."""

    words: int
    width: int
    num_warps: int
    num_stages: int

    def options(self) -> dict[str, int]:
        return {
            "BLOCK_W": self.words,
            "BLOCK_D": self.width,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


# Half precision, then float32, whose blocks are twice as large in memory. The first ones are what is used
# without tuning.
FORWARD = {2: [Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 3), Blocks(128, 32, 8, 4)], 4: [Blocks(64, 32, 8, 2)]}
BACKWARD = {
    2: [Blocks(64, 32, 4, 3), Blocks(128, 32, 8, 3), Blocks(128, 64, 8, 2)],
    4: [Blocks(32, 32, 8, 2)],
}


@jit(do_not_specialize=["num_words"])
def project(
    attention, regions, words, weight, bias, out, inverse,
    num_words, num_regions, sim_dim, epsilon,
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
        v = tl.load(
            regions + r[:, None] * WIDTH + d[None, :], mask=has_region[:, None] & inside[None, :], other=0.0
        )
        x = tl.load(
            words + w[:, None] * WIDTH + d[None, :], mask=has_word[:, None] & inside[None, :], other=0.0
        )
        p = tl.load(
            weight + s[None, :] * WIDTH + d[:, None], mask=has_sim[None, :] & inside[:, None], other=0.0
        )
        difference = tl.dot(a, v, input_precision=PRECISION) - x.to(tl.float32)
        square = (difference * difference).to(p.dtype)
        total = tl.dot(square, p, total, input_precision=PRECISION)
    total += tl.load(bias + s, mask=has_sim, other=0.0).to(tl.float32)[None, :]
    scale = 1.0 / (tl.sqrt(tl.sum(total * total, axis=1)) + epsilon)
    row = image * num_words + w
    tl.store(inverse + row, scale, mask=has_word)
    tl.store(
        out + row[:, None] * sim_dim + s[None, :],
        (total * scale[:, None]).to(out.dtype.element_ty),
        mask=has_word[:, None] & has_sim[None, :],
    )


@jit(do_not_specialize=["num_words", "first_word", "num_here"])
def project_back(
    upstream, out, inverse, attention, regions, words, weight,
    by_sum, by_attention, squares, by_context,
    upstream_stride, num_words, first_word, num_here, num_regions, sim_dim,
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

    g = tl.load(
        upstream + image * upstream_stride + w[:, None] * sim_dim + s[None, :], mask=word_sim, other=0.0
    )
    g = g.to(tl.float32)
    z = tl.load(out + row[:, None] * sim_dim + s[None, :], mask=word_sim, other=0.0).to(tl.float32)
    scale = tl.load(inverse + row, mask=has_word, other=0.0)
    h = (g - z * tl.sum(g * z, axis=1)[:, None]) * scale[:, None]
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
        v = tl.load(
            regions + r[:, None] * WIDTH + d[None, :], mask=has_region[:, None] & inside[None, :], other=0.0
        )
        x = tl.load(words + w[:, None] * WIDTH + d[None, :], mask=word_width, other=0.0)
        p = tl.load(
            weight + s[:, None] * WIDTH + d[None, :], mask=has_sim[:, None] & inside[None, :], other=0.0
        )
        difference = tl.dot(a, v, input_precision=PRECISION) - x.to(tl.float32)
        e = (2.0 * difference * tl.dot(h, p, input_precision=PRECISION)).to(p.dtype)
        places = row_here[:, None] * WIDTH + d[None, :]
        tl.store(squares + places, (difference * difference).to(p.dtype), mask=word_width)
        tl.store(by_context + places, e, mask=word_width)
        by_a = tl.dot(e, tl.trans(v), by_a, input_precision=PRECISION)
    tl.store(by_attention + a_places, by_a, mask=a_mask)


@functools.cache
def _tuned(kernel: Any) -> Any:
    """The kernel with a search for the best blocks, in half precision."""
    choices = (FORWARD if kernel is project else BACKWARD)[2]
    configs = [
        triton.Config(
            {"BLOCK_W": c.words, "BLOCK_D": c.width}, num_warps=c.num_warps, num_stages=c.num_stages
        )
        for c in choices
    ]
    return triton.autotune(configs=configs, key=["WIDTH", "sim_dim", "num_regions"])(kernel)


class _NodeProjection(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        attention: Tensor,
        regions: Tensor,
        words: Tensor,
        weight: Tensor,
        bias: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        out, inverse = _run_forward(attention, regions, words, weight, bias, dtype)
        ctx.save_for_backward(attention, regions, words, weight, bias, out, inverse)
        ctx.dtype = dtype
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():
            with torch.autocast(device_type=upstream.device.type, enabled=False):
                needed = ctx.needs_input_grad[:5]
                return *recorded_gradients(plain_node_projection, inputs, upstream, needed), None
        attention, regions, words, weight, _bias = inputs
        found = _run_backward(upstream, out, inverse, attention, regions, words, weight, ctx.dtype)
        return *(g.to(x.dtype) for g, x in zip(found, inputs, strict=True)), None


def _run_forward(
    attention: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    attention, regions, words, weight = in_format(dtype, attention, regions, words, weight)
    (n, r, num_words), (s, d) = attention.shape, weight.shape
    out = attention.new_empty(n, num_words, s)
    inverse = attention.new_empty(n, num_words, dtype=torch.float32)
    if out.numel():
        _launch(
            project,
            dtype,
            num_words,
            n,
            (attention, regions, words, weight, bias.contiguous(), out, inverse, num_words, r, s, EPSILON),
            WIDTH=d,
            REGIONS=block(r),
            SIM=block(s),
            PRECISION=precision(dtype),
        )
    return out, inverse


def _run_backward(
    upstream: Tensor,
    out: Tensor,
    inverse: Tensor,
    attention: Tensor,
    regions: Tensor,
    words: Tensor,
    weight: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    attention, regions, words, weight = in_format(dtype, attention, regions, words, weight)
    (n, r, num_words), (s, d) = attention.shape, weight.shape
    # Of a concatenation, upstream is a slice: only its images may lie apart.
    if upstream.stride()[1:] != (s, 1):
        upstream = upstream.contiguous()
    by_attention = attention.new_empty(attention.shape, dtype=torch.float32)
    by_regions, by_words, by_weight = (t.float().new_zeros(t.shape) for t in (regions, words, weight))
    by_bias = by_weight.new_zeros(s)
    at_once = _words_at_once(num_words, n * d * dtype.itemsize)
    for first in range(0, num_words if n else 0, at_once):
        here = min(at_once, num_words - first)
        by_sum, squares, by_context = (attention.new_empty(n, here, k) for k in (s, d, d))
        arguments = (
            upstream, out, inverse, attention, regions, words, weight, by_sum, by_attention, squares, by_context,
            upstream.stride(0), num_words, first, here, r, s,
        )  # fmt: skip
        blocks = {"WIDTH": d, "REGIONS": block(r), "SIM": block(s), "PRECISION": precision(dtype)}
        _launch(project_back, dtype, here, n, arguments, **blocks)
        by_words[first : first + here] = by_context.sum(dim=0, dtype=torch.float32).neg_()
        by_regions += attention[:, :, first : first + here] @ by_context
        by_weight += by_sum.flatten(0, 1).T @ squares.flatten(0, 1)
        by_bias += by_sum.sum(dim=(0, 1), dtype=torch.float32)
    return by_attention, by_regions, by_words, by_weight, by_bias


def _words_at_once(num_words: int, bytes_a_word: int) -> int:
    """How many words the backward pass takes at once: whole blocks, and about as many each time."""
    most = max(128, _BACKWARD_BYTES // max(1, bytes_a_word))
    times = -(-num_words // most) or 1
    return -(-num_words // (128 * times)) * 128 or 128


def _launch(
    kernel: Any, dtype: torch.dtype, num_words: int, n: int, arguments: tuple[Any, ...], **constants: Any
) -> None:
    """Run a kernel over blocks of words and images, with the first choice of blocks or with the best one."""
    if tunes() and dtype.itemsize == 2:
        _tuned(kernel)[lambda meta: (triton.cdiv(num_words, meta["BLOCK_W"]), n)](*arguments, **constants)
        return
    chosen = (FORWARD if kernel is project else BACKWARD)[dtype.itemsize][0]
    kernel[(-(-num_words // chosen.words), n)](*arguments, **constants, **chosen.options())
