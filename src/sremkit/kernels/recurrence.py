"""A gated recurrent network over captions of different lengths, one kernel a step for all captions and directions.

    r = σ(x_r + U_r h),  z = σ(x_z + U_z h),  n = tanh(x_n + r ∘ U_n h),  h ← (1 - z) ∘ n + z ∘ h

with biases inside of x and U. The library's recurrent networks want captions packed by their lengths, which
have to be known to the host: a wait in every step, a copy for every word, and nothing that could be recorded and
replayed. Here lengths stay on the device. The first direction reads word t at step t, the second one word
length - 1 - t. Programs take captions of like length, and rest when all of theirs have ended.

Forward, a program takes some captions and some hidden units: products with all units, then the gates. Backward, it
takes the same: products with the gates' gradients of the step behind, then the gates' gradients of its own.
States are float32; products have the number format that is asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sremkit.kernels.language import jit, precision, tl
from sremkit.kernels.twice import recorded_gradients


def recurrence(inputs: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
    """States (k, b, l, h) in float32 after each word, in k directions; 0 where there is no word.

    Args:
        inputs: (b, l, k, 3 h), the words' share of the gates r, z, n.
        weight: (k, 3 h, h), in the number format of the products.
        bias: (k, 3 h)
        lengths: (b,) int32
    """
    return _Recurrence.apply(inputs, weight, bias, lengths)


def plain_recurrence(inputs: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
    """The same in plain PyTorch, step by step."""
    b, num_steps, k, _ = inputs.shape
    h = inputs.new_zeros(k, b, weight.shape[2])
    rows = torch.arange(b, device=inputs.device)
    steps = []
    for step in range(num_steps):
        words = _word_of_step(lengths, step, k)  # (k, b)
        x = torch.stack([inputs[rows, words[side], side] for side in range(k)])  # (k, b, 3 h)
        of_words, of_state = x.chunk(3, dim=2), torch.baddbmm(bias.unsqueeze(1), h, weight.mT).chunk(3, dim=2)
        r, z = (torch.sigmoid(of_words[gate] + of_state[gate]) for gate in (0, 1))
        n = torch.tanh(of_words[2] + r * of_state[2])
        active = (step < lengths).view(1, b, 1)
        h = torch.where(active, (1 - z) * n + z * h, h)
        steps.append(h.masked_fill(~active, 0.0))
    by_step = torch.stack(steps, dim=2)  # (k, b, l, h)
    orders = _orders(lengths, num_steps, k)
    return torch.stack([side[rows.unsqueeze(1), order] for side, order in zip(by_step, orders, strict=True)])


def _word_of_step(lengths: Tensor, step: int, directions: int) -> Tensor:
    """(k, b) int64: which word each direction reads; 0 where a caption has ended."""
    forwards = torch.full_like(lengths, step)
    sides = [forwards, lengths - 1 - step][:directions]
    return torch.stack(sides).clamp_min(0).long()


def _orders(lengths: Tensor, steps: int, directions: int) -> list[Tensor]:
    """For each direction (b, l) int64: at which step a word was read; an absent word points to itself."""
    words = torch.arange(steps, device=lengths.device).expand(len(lengths), -1)
    backwards = lengths.long().unsqueeze(1) - 1 - words
    return [words, torch.where(backwards >= 0, backwards, words)][:directions]


@jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@jit
def _tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@jit
def _captions(order, num_items, BLOCK_B: tl.constexpr):
    """The captions of a program, by falling length, so that they end together; and whether there are any."""
    place = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    return tl.load(order + place, mask=place < num_items, other=0), place < num_items


@jit
def _place(lengths, step, side, num_items, b, has_item):
    """Which word these captions are at, and whether they have one."""
    length = tl.load(lengths + b, mask=has_item, other=0)
    word = tl.where(side == 0, step, length - 1 - step)
    return tl.maximum(word, 0), has_item & (step < length)


@jit(do_not_specialize=["step", "num_steps", "num_items"])
def advance(
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
        return  # all these captions have ended, and nobody looks at what comes after
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
def retreat(
    upstream, weight, lengths, order, states, gates, carry, by_inputs, by_gates,
    step, num_steps, num_items, hidden, SIDES: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward: one step, from the gates' gradients of the step behind to those of this one."""
    side = tl.program_id(2)
    b, has_item = _captions(order, num_items, BLOCK_B)
    j = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    has_unit = j < hidden
    block = has_item[:, None] & has_unit[None, :]
    of_step = ((side * num_steps + step) * num_items + b).to(tl.int64)  # rows of gates and of their gradients
    by_state = tl.load(
        carry + (side * num_items + b)[:, None] * hidden + j[None, :], mask=block, other=0.0
    )  # what the step behind left
    _behind, goes_on = _place(lengths, step + 1, side, num_items, b, has_item)
    if tl.sum(goes_on.to(tl.int32)) > 0:
        weight += side * 3 * hidden * hidden
        behind = of_step + num_items
        for start in range(0, WIDE, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            inside = k < 3 * hidden
            g = tl.load(
                by_gates + behind[:, None] * 3 * hidden + k[None, :],
                mask=has_item[:, None] & inside[None, :],
                other=0.0,
            )
            u = tl.load(
                weight + k[:, None] * hidden + j[None, :], mask=inside[:, None] & has_unit[None, :], other=0.0
            )
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


class _Recurrence(torch.autograd.Function):
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
        blocks = ADVANCE[u.dtype.itemsize]
        for step in range(num_steps):
            advance[_grid(blocks, b, h, k)](
                x, u, bias.contiguous(), lengths, order, states, low, out, gates, step, num_steps, b, h,
                SIDES=k, KEEP=keep, HIDDEN=h, PRECISION=precision(u.dtype), **blocks,
            )  # fmt: skip
        ctx.save_for_backward(inputs, weight, bias, lengths, order, states, low, gates)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, lengths, order, states, low, gates = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *recorded_gradients(
                lambda x, u, c: plain_recurrence(x.float(), u.float(), c.float(), lengths),
                (inputs, weight, bias),
                upstream,
                ctx.needs_input_grad[:3],
            ), None
        u = weight.contiguous()
        (b, num_steps, k, _), h = inputs.shape, u.shape[2]
        carry = states.new_zeros(k, b, h)
        by_inputs = torch.zeros_like(inputs, memory_format=torch.contiguous_format)
        by_gates = u.new_empty(k, num_steps, b, 3 * h)
        upstream = upstream.float().contiguous()
        blocks = RETREAT[u.dtype.itemsize]
        for step in reversed(range(num_steps)):
            retreat[_grid(blocks, b, h, k)](
                upstream, u, lengths, order, states, gates, carry, by_inputs, by_gates, step, num_steps, b, h,
                SIDES=k, WIDE=3 * h, PRECISION=precision(u.dtype), **blocks,
            )  # fmt: skip
        of_steps = by_gates.flatten(1, 2)  # (k, l·b, 3 h)
        with torch.autocast(device_type=upstream.device.type, enabled=False):
            by_weight = of_steps.mT @ low.flatten(1, 2)[:, : num_steps * b]
        return by_inputs, by_weight, of_steps.sum(dim=1, dtype=torch.float32).to(bias.dtype), None


# How each kernel's work is cut and scheduled, by the bytes of a number. A program reads its captions' states and its
# units' weights anew in every step: large blocks read less, small ones are more programs.
ADVANCE = {
    2: {"BLOCK_B": 64, "BLOCK_H": 32, "BLOCK_K": 64, "num_warps": 4, "num_stages": 4},
    4: {"BLOCK_B": 64, "BLOCK_H": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
}
RETREAT = {
    2: {"BLOCK_B": 64, "BLOCK_H": 32, "BLOCK_K": 64, "num_warps": 4, "num_stages": 4},
    4: {"BLOCK_B": 64, "BLOCK_H": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
}


def _grid(blocks: dict[str, int], num_items: int, hidden: int, directions: int) -> tuple[int, int, int]:
    return -(-hidden // blocks["BLOCK_H"]), -(-num_items // blocks["BLOCK_B"]), directions
