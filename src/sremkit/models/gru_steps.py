"""One direction of a gated recurrent network on a processor, word by word, in buffers of its own.

    r = σ(x_r + U_r h),  z = σ(x_z + U_z h),  n = tanh(x_n + r ∘ U_n h),  h ← (1 - z) ∘ n + z ∘ h

with biases inside of x and U. Items lie sorted by length, so that those which have a word at a step are the first
ones, and rows are packed: those of the first step, then those of the second, and so on.

Autograd would bring, for every step, a gradient as large as all inputs, and one as large as all weights. Here
each step writes its rows of one buffer, and the weights have their gradient by a single product. Backward
passes that are to be differentiated themselves go by way of the plain twin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sremkit.kernels.twice import recorded_gradients


def gru_steps(inputs: Tensor, weight: Tensor, bias: Tensor, sizes: Sequence[int]) -> Tensor:
    """States (W, h) after each word.

    Args:
        inputs: (W, 3 h), the words' share of the gates r, z, n.
        weight: (3 h, h)
        bias: (3 h,)
        sizes: how many items have a word at each step; they never grow, and add up to W.
    """
    return _GruSteps.apply(inputs, weight, bias, tuple(sizes))


def plain_gru_steps(inputs: Tensor, weight: Tensor, bias: Tensor, sizes: Sequence[int]) -> Tensor:
    """The same, by operations that autograd knows."""
    state = inputs.new_zeros(sizes[0], weight.shape[1])
    states = []
    for x in inputs.split(list(sizes)):
        state = state[: len(x)]
        (x_r, x_z, x_n), (u_r, u_z, u_n) = (
            gates.chunk(3, dim=1) for gates in (x, torch.addmm(bias, state, weight.T))
        )
        z = torch.sigmoid(x_z + u_z)
        state = (1 - z) * torch.tanh(x_n + torch.sigmoid(x_r + u_r) * u_n) + z * state
        states.append(state)
    return torch.cat(states)


def _rows(sizes: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """For each step its rows, and those of the step before that go on; for the first one these are empty."""
    before, start = slice(0, 0), 0
    for size in sizes:
        rows = slice(start, start + size)
        yield rows, slice(before.start, before.start + size) if start else before
        before, start = rows, rows.stop


class _GruSteps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, sizes: tuple[int, ...]) -> Tensor:
        h = weight.shape[1]
        states, gates = inputs.new_empty(len(inputs), h), torch.empty_like(inputs)  # gates: r, z, n
        of_n = inputs.new_empty(len(inputs), h)  # U_n h and its bias
        of_state, nothing = inputs.new_empty(sizes[0], 3 * h), inputs.new_zeros(sizes[0], h)
        for rows, behind in _rows(sizes):
            before = states[behind] if rows.start else nothing
            u, x, g = of_state[: len(before)], inputs[rows], gates[rows]
            torch.addmm(bias, before, weight.T, out=u)
            of_n[rows] = u[:, 2 * h :]
            torch.add(x[:, : 2 * h], u[:, : 2 * h], out=g[:, : 2 * h]).sigmoid_()
            r, z, n = g.chunk(3, dim=1)
            torch.addcmul(x[:, 2 * h :], r, u[:, 2 * h :], out=n).tanh_()
            torch.lerp(n, before, z, out=states[rows])
        ctx.save_for_backward(inputs, weight, bias, states, gates, of_n)
        ctx.sizes = sizes
        return states

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, states, gates, of_n = ctx.saved_tensors
        sizes, h = ctx.sizes, weight.shape[1]
        if torch.is_grad_enabled():  # this pass will itself be differentiated
            return *recorded_gradients(
                lambda x, u, c: plain_gru_steps(x, u, c, sizes),
                (inputs, weight, bias),
                upstream,
                ctx.needs_input_grad[:3],
            ), None
        by_inputs, by_products = torch.empty_like(gates), torch.empty_like(gates)
        earlier = torch.zeros_like(states)  # the state before each word
        by_state = upstream.clone()
        for rows, behind in reversed(list(_rows(sizes))):
            d, (r, z, n) = by_state[rows], gates[rows].chunk(3, dim=1)
            before, (by_r, by_z, by_n) = earlier[rows], by_inputs[rows].chunk(3, dim=1)
            if rows.start:
                before.copy_(states[behind])
            torch.sub(before, n, out=by_z).mul_(d).mul_(z).addcmul_(by_z, z, value=-1)
            torch.addcmul(d, d, z, out=by_n, value=-1)
            by_n.addcmul_(by_n * n, n, value=-1)
            torch.mul(by_n, of_n[rows], out=by_r).mul_(r).addcmul_(by_r, r, value=-1)
            products = by_products[rows]
            products.copy_(by_inputs[rows])
            products[:, 2 * h :].mul_(r)
            if rows.start:
                by_state[behind].addcmul_(d, z).addmm_(products, weight)
        return by_inputs, by_products.T @ earlier, by_products.sum(dim=0), None
