"""Triton backend of the GRU: one kernel a step for all captions and both directions.

PyTorch's recurrent networks want captions packed by their lengths, which have to be known to the host: a
synchronisation in every step, a copy for every word, and no CUDA graph. Here lengths stay on the device. The
first direction reads word t at step t, the second one word length - 1 - t. Programs take captions of similar
length, and return early when all of theirs have ended.

Forward, a program takes some captions and some hidden units: products with all units, then the gates. Backward,
products with the gates' gradients of the following step, then its own. States are float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sremkit.ops.functional import differentiable_gradients, without_autocast
from sremkit.ops.gru import padded_reference
from sremkit.ops.triton.triton_utils import jit, precision, tl


def gru_kernel(inputs: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
    """As `padded_reference`, in float32; the weight has the dtype of the products, and lengths are at least 1."""
    return _Gru.apply(inputs, weight, bias, lengths)


@jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@jit
def _tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@jit
def _captions(order, num_items, BLOCK_B: tl.constexpr):
    """The captions of a program, in order of decreasing length, so that they end together; and their mask."""
    place = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    return tl.load(order + place, mask=place < num_items, other=0), place < num_items


@jit
def _place(lengths, step, side, num_items, b, has_item):
    """The word that these captions are at, and whether they have one."""
    length = tl.load(lengths + b, mask=has_item, other=0)
    word = tl.where(side == 0, step, length - 1 - step)
    return tl.maximum(word, 0), has_item & (step < length)


@jit(do_not_specialize=["step", "num_steps", "num_items"])
def gru_forward(
    inputs, weight, bias, lengths, order, states, low, out, gates, step, num_steps, num_items, hidden,
    SIDES: tl.constexpr, KEEP: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr, HIDDEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward: one step of BLOCK_B captions and BLOCK_H hidden units in one direction."""
    side = tl.program_id(2)
    b, has_item = _captions(order, num_items, BLOCK_B)
    j = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    has_unit = j < hidden
    block = has_item[:, None] & has_unit[None, :]
    word, active = _place(lengths, step, side, num_items, b, has_item)
    if tl.sum(active.to(tl.int32)) == 0:
        return  # all these captions have ended, and later states are not read
    now = (side * (num_steps + 1) + step) * num_items  # rows of states before this step
    weight += side * 3 * hidden * hidden
    by_r = tl.full((BLOCK_B, BLOCK_H), 0.0, tl.float32)
    by_z = tl.full((BLOCK_B, BLOCK_H), 0.0, tl.float32)
    by_n = tl.full((BLOCK_B, BLOCK_H), 0.0, tl.float32)
    for start in range(0, HIDDEN, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = k < hidden
        h = tl.load(
            low + (now + b)[:, None] * hidden + k[None, :],
            mask=has_item[:, None] & inside[None, :],
            other=0.0,
        )
        u_places = j[None, :] * hidden + k[:, None]
        u_mask = inside[:, None] & has_unit[None, :]
        u_r = tl.load(weight + u_places, mask=u_mask, other=0.0)
        by_r = tl.dot(h, u_r, by_r, input_precision=PRECISION)
        u_z = tl.load(weight + hidden * hidden + u_places, mask=u_mask, other=0.0)
        by_z = tl.dot(h, u_z, by_z, input_precision=PRECISION)
        u_n = tl.load(weight + 2 * hidden * hidden + u_places, mask=u_mask, other=0.0)
        by_n = tl.dot(h, u_n, by_n, input_precision=PRECISION)
    bias += side * 3 * hidden
    by_n += tl.load(bias + 2 * hidden + j, mask=has_unit, other=0.0).to(tl.float32)[None, :]
    by_r += tl.load(bias + j, mask=has_unit, other=0.0).to(tl.float32)[None, :]
    by_z += tl.load(bias + hidden + j, mask=has_unit, other=0.0).to(tl.float32)[None, :]
    row = (b * num_steps + word).to(tl.int64)
    x = inputs + (row * SIDES + side)[:, None] * 3 * hidden + j[None, :]
    r = _sigmoid(tl.load(x, mask=block, other=0.0).to(tl.float32) + by_r)
    z = _sigmoid(tl.load(x + hidden, mask=block, other=0.0).to(tl.float32) + by_z)
    n = _tanh(tl.load(x + 2 * hidden, mask=block, other=0.0).to(tl.float32) + r * by_n)
    before = tl.load(states + (now + b)[:, None] * hidden + j[None, :], mask=block, other=0.0)
    after = tl.where(active[:, None], (1.0 - z) * n + z * before, before)
    places = (now + num_items + b)[:, None] * hidden + j[None, :]
    tl.store(states + places, after, mask=block)
    tl.store(low + places, after.to(low.dtype.element_ty), mask=block)
    out_row = (side * num_items + b).to(tl.int64) * num_steps + word
    tl.store(out + out_row[:, None] * hidden + j[None, :], after, mask=block & active[:, None])
    if KEEP:
        kept = ((side * num_steps + step) * num_items + b).to(tl.int64)
        g = gates + kept[:, None] * 4 * hidden + j[None, :]
        tl.store(g, r, mask=block)
        tl.store(g + hidden, z, mask=block)
        tl.store(g + 2 * hidden, n, mask=block)
        tl.store(g + 3 * hidden, by_n, mask=block)


@jit(do_not_specialize=["step", "num_steps", "num_items"])
def gru_backward(
    upstream, weight, lengths, order, states, gates, carry, by_inputs, by_gates,
    step, num_steps, num_items, hidden, SIDES: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward: one step, from the gates' gradients of the following step to those of this one."""
    side = tl.program_id(2)
    b, has_item = _captions(order, num_items, BLOCK_B)
    j = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    has_unit = j < hidden
    block = has_item[:, None] & has_unit[None, :]
    of_step = ((side * num_steps + step) * num_items + b).to(tl.int64)  # rows of gates and of their gradients
    by_state = tl.load(
        carry + (side * num_items + b)[:, None] * hidden + j[None, :], mask=block, other=0.0
    )  # from the following step
    _word, continues = _place(lengths, step + 1, side, num_items, b, has_item)
    if tl.sum(continues.to(tl.int32)) > 0:
        weight += side * 3 * hidden * hidden
        following = of_step + num_items
        for start in range(0, WIDE, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            inside = k < 3 * hidden
            g = tl.load(
                by_gates + following[:, None] * 3 * hidden + k[None, :],
                mask=has_item[:, None] & inside[None, :],
                other=0.0,
            )
            u = tl.load(weight + k[:, None] * hidden + j[None, :], mask=inside[:, None] & has_unit[None, :], other=0.0)
            by_state = tl.dot(g, u, by_state, input_precision=PRECISION)
    word, active = _place(lengths, step, side, num_items, b, has_item)
    out_row = (side * num_items + b).to(tl.int64) * num_steps + word
    here = block & active[:, None]
    by_state += tl.load(upstream + out_row[:, None] * hidden + j[None, :], mask=here, other=0.0)
    g = gates + of_step[:, None] * 4 * hidden + j[None, :]
    r = tl.load(g, mask=here, other=0.0)
    z = tl.load(g + hidden, mask=here, other=0.0)
    n = tl.load(g + 2 * hidden, mask=here, other=0.0)
    of_n = tl.load(g + 3 * hidden, mask=here, other=0.0)
    row_before = (side * (num_steps + 1) + step) * num_items + b
    before = tl.load(states + row_before[:, None] * hidden + j[None, :], mask=block, other=0.0)
    by_n = tl.where(here, by_state * (1.0 - z) * (1.0 - n * n), 0.0)
    by_z = tl.where(here, by_state * (before - n) * z * (1.0 - z), 0.0)
    by_r = by_n * of_n * r * (1.0 - r)
    tl.store(
        carry + (side * num_items + b)[:, None] * hidden + j[None, :],
        tl.where(here, by_state * z, by_state),
        mask=block,
    )
    kind = by_gates.dtype.element_ty
    to_gates = by_gates + of_step[:, None] * 3 * hidden + j[None, :]
    tl.store(to_gates, by_r.to(kind), mask=block)
    tl.store(to_gates + hidden, by_z.to(kind), mask=block)
    tl.store(to_gates + 2 * hidden, (by_n * r).to(kind), mask=block)
    kind = by_inputs.dtype.element_ty
    row = (b * num_steps + word).to(tl.int64)
    to_inputs = by_inputs + (row * SIDES + side)[:, None] * 3 * hidden + j[None, :]
    tl.store(to_inputs, by_r.to(kind), mask=here)
    tl.store(to_inputs + hidden, by_z.to(kind), mask=here)
    tl.store(to_inputs + 2 * hidden, by_n.to(kind), mask=here)


class _Gru(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
        x, u, lengths = inputs.contiguous(), weight.contiguous(), lengths.to(torch.int32)
        (b, num_steps, k, _), h = x.shape, u.shape[2]
        order = lengths.argsort(descending=True, stable=True).to(torch.int32)
        keep = any(ctx.needs_input_grad)
        states = u.new_zeros(k, num_steps + 1, b, h, dtype=torch.float32)
        low = states if u.dtype == torch.float32 else torch.zeros_like(states, dtype=u.dtype)
        out = states.new_zeros(k, b, num_steps, h)
        gates = states.new_empty(k, num_steps, b, 4, h) if keep else states
        blocks = FORWARD[u.dtype.itemsize]
        for step in range(num_steps):
            gru_forward[_grid(blocks, b, h, k)](
                x, u, bias.contiguous(), lengths, order, states, low, out, gates, step, num_steps, b, h,
                SIDES=k, KEEP=keep, HIDDEN=h, PRECISION=precision(u.dtype), **blocks,
            )  # fmt: skip
        ctx.save_for_backward(inputs, weight, bias, lengths, order, states, low, gates)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, lengths, order, states, low, gates = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_gradients(ctx, padded_reference, (inputs, weight, bias), upstream, lengths)
        u = weight.contiguous()
        (b, num_steps, k, _), h = inputs.shape, u.shape[2]
        carry = states.new_zeros(k, b, h)
        by_inputs = torch.zeros_like(inputs, memory_format=torch.contiguous_format)
        by_gates = u.new_empty(k, num_steps, b, 3 * h)
        upstream = upstream.float().contiguous()
        blocks = BACKWARD[u.dtype.itemsize]
        for step in reversed(range(num_steps)):
            gru_backward[_grid(blocks, b, h, k)](
                upstream, u, lengths, order, states, gates, carry, by_inputs, by_gates, step, num_steps, b, h,
                SIDES=k, WIDE=3 * h, PRECISION=precision(u.dtype), **blocks,
            )  # fmt: skip
        of_steps = by_gates.flatten(1, 2)  # (k, l·b, 3 h)
        with without_autocast(upstream):
            by_weight = of_steps.mT @ low.flatten(1, 2)[:, : num_steps * b]
        return by_inputs, by_weight, of_steps.sum(dim=1, dtype=torch.float32).to(bias.dtype), None


# Block sizes and schedules of each kernel, by the bytes of an element. A program reads its captions' states and its
# units' weights again in every step: large blocks read less, small ones are more programs.
FORWARD = {
    2: {"BLOCK_B": 64, "BLOCK_H": 32, "BLOCK_K": 64, "num_warps": 4, "num_stages": 4},
    4: {"BLOCK_B": 64, "BLOCK_H": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
}
BACKWARD = dict(FORWARD)


def _grid(blocks: dict[str, int], num_items: int, hidden: int, directions: int) -> tuple[int, int, int]:
    return -(-hidden // blocks["BLOCK_H"]), -(-num_items // blocks["BLOCK_B"]), directions
