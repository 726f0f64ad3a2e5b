"""The two kernels of the node projection, and how their work is cut into blocks.

A program takes one image and a block of words, and walks over the width a few columns at a time; the formulas
stand in `node_projection`. The blocks are the first of a list, or the best of it where a search is asked for.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from sremkit.kernels.language import jit, tl, triton, tunes

LEAST_WORDS = 32  # of a program, among all the choices below


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


def launch(
    kernel: Any, dtype: torch.dtype, num_words: int, n: int, arguments: tuple[Any, ...], **constants: Any
) -> None:
    """Run a kernel over blocks of words and images, with the first choice of blocks or with the best one."""
    if tunes() and dtype.itemsize == 2:
        _tuned(kernel)[lambda meta: (triton.cdiv(num_words, meta["BLOCK_W"]), n)](*arguments, **constants)
        return
    chosen = (FORWARD if kernel is project else BACKWARD)[dtype.itemsize][0]
    kernel[(-(-num_words // chosen.words), n)](*arguments, **constants, **chosen.options())
