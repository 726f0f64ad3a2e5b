"""Recurrent networks that stop where an item ends: by kernels, on a processor, or by the library."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from sremkit import kernels
from sremkit.models.gru_steps import gru_steps
from sremkit.models.similarity import full_precision, without_autocast


def run_gru(gru: nn.GRU, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (b, l, h) and last states (b, h) of a recurrent network of one layer.

    The directions of a bidirectional network are averaged. Recurrence adds rounding upon rounding, so states
    stay in full precision.
    """
    if gru.num_layers > 1:
        raise ValueError(f"a recurrent network of one layer is wanted here, this one has {gru.num_layers}")
    if gru.bias and kernels.uses_triton(x):
        return _by_kernel(gru, x, mask)
    # The library's gradients are what is slow there; compilers look into the library only.
    if gru.bias and x.device.type == "cpu" and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return _on_processor(gru, x, mask)
    lengths = mask.sum(dim=1).clamp_min(1).cpu()
    with without_autocast(x):
        packed = pack_padded_sequence(full_precision(x), lengths, batch_first=True, enforce_sorted=False)
        packed_output, state = gru(packed)
        output, _ = pad_packed_sequence(packed_output, batch_first=True, total_length=x.shape[1])
    if gru.bidirectional:
        output = (output[..., : gru.hidden_size] + output[..., gru.hidden_size :]) / 2
    return output, state.mean(dim=0)


def _on_processor(gru: nn.GRU, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The same with words packed by our own hand, each direction in the order in which it reads."""
    b, width, _ = x.shape
    lengths = mask.sum(dim=1).clamp_min(1)
    order = lengths.argsort(descending=True, stable=True)
    steps, ranks = (torch.arange(width).unsqueeze(1) < lengths[order]).nonzero(as_tuple=True)  # (W,) each
    items = order[ranks]
    sizes = steps.bincount().tolist()
    words = [items * width + steps, items * width + lengths[items] - 1 - steps]  # forwards, backwards
    ends = (steps == lengths[items] - 1).nonzero().squeeze(1)  # the row of each item's last step
    ends = torch.empty_like(ends).index_copy_(0, items[ends], ends)
    with without_autocast(x):
        x = full_precision(x).flatten(0, 1)
        output, last = x.new_zeros(b * width, gru.hidden_size), []
        parameters = [_directions(gru, name) for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
        for read, input_weight, input_bias, weight, bias in zip(words, *parameters, strict=False):
            inputs = F.linear(x.index_select(0, read), input_weight, input_bias)
            states = gru_steps(inputs, weight, bias, sizes)  # (W, h)
            output = output.index_add(0, read, states, alpha=1 / len(parameters[0]))
            last.append(states[ends])
    return output.unflatten(0, (b, width)), torch.stack(last).mean(dim=0)


def _by_kernel(gru: nn.GRU, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The same with lengths that stay on the device."""
    from sremkit.kernels.recurrence import recurrence  # imports Triton

    dtype = kernels.compute_dtype(x)
    lengths = mask.sum(dim=1, dtype=torch.int32).clamp_min(1)
    input_weight, input_bias = (torch.cat(_directions(gru, name)) for name in ("weight_ih", "bias_ih"))
    weight, bias = (torch.stack(_directions(gru, name)) for name in ("weight_hh", "bias_hh"))
    with without_autocast(x):
        x, input_weight = (_aligned(t.to(dtype)) for t in (x, input_weight))
        inputs = F.linear(x, input_weight, input_bias.to(dtype))  # (b, l, k·3h)
        states = recurrence(inputs.unflatten(2, bias.shape), weight.to(dtype), bias, lengths)  # (k, b, l, h)
    rows, ends = torch.arange(len(x), device=x.device), lengths.long() - 1
    last = torch.stack([states[0, rows, ends], *(side[:, 0] for side in states[1:])])  # (k, b, h)
    return states.mean(dim=0), last.mean(dim=0)


def _aligned(x: Tensor) -> Tensor:
    """With zeros added to the last axis up to a multiple of 8, which matrix units want; 300 is none."""
    return F.pad(x, (0, -x.shape[-1] % 8))


def _directions(gru: nn.GRU, name: str) -> list[Tensor]:
    """A parameter of the only layer, forwards and, where there is one, backwards."""
    return [getattr(gru, f"{name}_l0{side}") for side in ("", "_reverse")[: 1 + gru.bidirectional]]
