"""A gated recurrent network of one layer over padded sequences, which stops where an item ends.

    r = σ(x_r + U_r h),  z = σ(x_z + U_z h),  n = tanh(x_n + r ∘ U_n h),  h ← (1 - z) ∘ n + z ∘ h

with biases inside x and U. Three backends: a Triton kernel whose lengths stay on the device, CPU steps with a
backward pass of their own, and PyTorch's `nn.GRU` with packed sequences. States are kept in full precision,
because rounding errors accumulate from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from sremkit import ops
from sremkit.ops.functional import full_precision, without_autocast


def run_gru(gru: nn.GRU, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (b, l, h) and last states (b, h); the directions of a bidirectional network are averaged."""
    if gru.num_layers > 1:
        raise ValueError(f"run_gru takes a GRU of one layer, this one has {gru.num_layers}")
    if gru.bias and ops.uses_triton(x):
        return _with_kernel(gru, x, mask)
    # PyTorch is slow in the backward pass only; compilers can trace nothing else.
    if gru.bias and x.device.type == "cpu" and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return _on_cpu(gru, x, mask)
    lengths = mask.sum(dim=1).clamp_min(1).cpu()
    with without_autocast(x):
        packed = pack_padded_sequence(full_precision(x), lengths, batch_first=True, enforce_sorted=False)
        packed_output, state = gru(packed)
        output, _ = pad_packed_sequence(packed_output, batch_first=True, total_length=x.shape[1])
    if gru.bidirectional:
        output = (output[..., : gru.hidden_size] + output[..., gru.hidden_size :]) / 2
    return output, state.mean(dim=0)


def gru_steps_reference(inputs: Tensor, weight: Tensor, bias: Tensor, batch_sizes: Sequence[int]) -> Tensor:
    """States (W, h) after each word of time-major packed sequences, as in `PackedSequence`.

    Args:
        inputs: (W, 3 h), x of the gates r, z, n.
        weight: (3 h, h)
        bias: (3 h,)
        batch_sizes: how many items have a word at each step; never increasing, with the sum W.
    """
    state = inputs.new_zeros(batch_sizes[0], weight.shape[1])
    states = []
    for x in inputs.split(list(batch_sizes)):
        state = state[: len(x)]
        (x_r, x_z, x_n), (u_r, u_z, u_n) = (gates.chunk(3, dim=1) for gates in (x, torch.addmm(bias, state, weight.T)))
        z = torch.sigmoid(x_z + u_z)
        state = (1 - z) * torch.tanh(x_n + torch.sigmoid(x_r + u_r) * u_n) + z * state
        states.append(state)
    return torch.cat(states)


class TimeMajor(NamedTuple):
    """Where the words of padded sequences (b, l) are when packed step by step, the longest items first."""

    batch_sizes: list[int]
    words: tuple[Tensor, Tensor]  # (W,) int64 each: the position among b · l that each direction reads
    ends: Tensor  # (b,) int64: the row of each item's last step


def time_major(lengths: Tensor, width: int) -> TimeMajor:
    """The time-major packing of items of these lengths (b,), at least 1 each; the host waits for the lengths."""
    order = lengths.argsort(descending=True, stable=True)
    columns = torch.arange(width, device=lengths.device).unsqueeze(1)
    steps, ranks = (columns < lengths[order]).nonzero(as_tuple=True)  # (W,) each
    items = order[ranks]
    forward, backward = items * width + steps, items * width + lengths[items] - 1 - steps
    ends = (steps == lengths[items] - 1).nonzero().squeeze(1)
    ends = torch.empty_like(ends).index_copy_(0, items[ends], ends)
    return TimeMajor(steps.bincount().tolist(), (forward, backward), ends)


def padded_reference(inputs: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
    """States (k, b, l, h) after each word of padded sequences in k directions; 0 where there is no word.

    Args:
        inputs: (b, l, k, 3 h)
        weight: (k, 3 h, h)
        bias: (k, 3 h)
        lengths: (b,)
    """
    (b, width, k, _), h = inputs.shape, weight.shape[2]
    packed, flat, states = time_major(lengths.long(), width), inputs.flatten(0, 1), []
    for side, words in zip(range(k), packed.words, strict=False):
        of_side = gru_steps_reference(flat[words, side], weight[side], bias[side], packed.batch_sizes)
        states.append(of_side.new_zeros(b * width, h).index_copy(0, words, of_side).unflatten(0, (b, width)))
    return torch.stack(states)


def _on_cpu(gru: nn.GRU, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Words packed step by step, for each direction in the order in which it reads."""
    from sremkit.ops.cpu import gru_steps

    b, width, _ = x.shape
    packed = time_major(mask.sum(dim=1).clamp_min(1), width)
    with without_autocast(x):
        x = full_precision(x).flatten(0, 1)
        output, last = x.new_zeros(b * width, gru.hidden_size), []
        parameters = [_directions(gru, name) for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
        for words, input_weight, input_bias, weight, bias in zip(packed.words, *parameters, strict=False):
            inputs = F.linear(x.index_select(0, words), input_weight, input_bias)
            states = gru_steps(inputs, weight, bias, packed.batch_sizes)  # (W, h)
            output = output.index_add(0, words, states, alpha=1 / len(parameters[0]))
            last.append(states[packed.ends])
    return output.unflatten(0, (b, width)), torch.stack(last).mean(dim=0)


def _with_kernel(gru: nn.GRU, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Lengths stay on the device."""
    from sremkit.ops.triton.gru import gru_kernel

    dtype = ops.compute_dtype(x)
    lengths = mask.sum(dim=1, dtype=torch.int32).clamp_min(1)
    input_weight, input_bias = (torch.cat(_directions(gru, name)) for name in ("weight_ih", "bias_ih"))
    weight, bias = (torch.stack(_directions(gru, name)) for name in ("weight_hh", "bias_hh"))
    with without_autocast(x):
        # Zeros up to a multiple of 8, which matrix units need; the usual width of 300 is none.
        x, input_weight = (F.pad(t.to(dtype), (0, -t.shape[-1] % 8)) for t in (x, input_weight))
        inputs = F.linear(x, input_weight, input_bias.to(dtype))  # (b, l, k·3h)
        states = gru_kernel(inputs.unflatten(2, bias.shape), weight.to(dtype), bias, lengths)  # (k, b, l, h)
    rows, ends = torch.arange(len(x), device=x.device), lengths.long() - 1
    last = torch.stack([states[0, rows, ends], *(side[:, 0] for side in states[1:])])  # (k, b, h)
    return states.mean(dim=0), last.mean(dim=0)


def _directions(gru: nn.GRU, name: str) -> list[Tensor]:
    """A parameter of the only layer, of the forward direction and, if there is one, of the backward direction."""
    return [getattr(gru, f"{name}_l0{side}") for side in ("", "_reverse")[: 1 + gru.bidirectional]]
