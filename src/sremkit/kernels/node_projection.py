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

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.kernels.image_sum import minus_sum_over_images
from sremkit.kernels.language import EPSILON, block, in_format, jit, precision, tl, triton, tunes
from sremkit.kernels.twice import recorded_gradients

_LEAST_WORDS = 32  # of a program
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

    g = tl.load(
        upstream + image * upstream_stride + w[:, None] * sim_dim + s[None, :], mask=word_sim, other=0.0
    )
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
    tl.store(by_attention + a_places, by_a.to(by_attention.dtype.element_ty), mask=a_mask)


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
    # Trials with smaller blocks write more partial sums than the winner does.
    cleared = ["by_bias"] if kernel is project_back else None
    key = ["WIDTH", "sim_dim", "num_regions"]
    return triton.autotune(configs=configs, key=key, reset_to_zero=cleared)(kernel)


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
            with torch.autocast(device_type=upstream.device.type, enabled=False):
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
        _launch(project, out.dtype, num_words, n, arguments, **_constants(part))
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
        bias_parts = by_bias.new_zeros(n * -(-here // _LEAST_WORDS), s)
        arguments = (
            upstream, out, inverse, attention, regions, words, weight,
            by_sum, bias_parts, by_attention, squares, by_context,
            upstream.stride(0), out.stride(0), num_words, first, here, r, s,
        )  # fmt: skip
        _launch(project_back, out.dtype, here, n, arguments, **_constants(part))
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


def _launch(
    kernel: Any, dtype: torch.dtype, num_words: int, n: int, arguments: tuple[Any, ...], **constants: Any
) -> None:
    """Run a kernel over blocks of words and images, with the first choice of blocks or with the best one."""
    if tunes() and dtype.itemsize == 2:
        _tuned(kernel)[lambda meta: (triton.cdiv(num_words, meta["BLOCK_W"]), n)](*arguments, **constants)
        return
    chosen = (FORWARD if kernel is project else BACKWARD)[dtype.itemsize][0]
    kernel[(-(-num_words // chosen.words), n)](*arguments, **constants, **chosen.options())
