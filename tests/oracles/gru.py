"""A gated recurrent network, one direction, one caption, one word and one hidden unit at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def gru(inputs: Tensor, weight: Tensor, bias: Tensor, lengths: list[int]) -> Tensor:
    """(k, b, l, h): the state after each word, 0 where a caption has no word.

    `inputs` (b, l, k, 3 h) are the words' inputs of the gates r, z and n; the second direction reads a caption's
    own words from the last to the first.
    """
    num_items, num_words, num_sides, _ = inputs.shape
    hidden = weight.shape[2]
    absent = inputs.new_zeros(hidden)
    sides = []
    for side in range(num_sides):
        captions = []
        for item in range(num_items):
            states = [absent] * num_words
            h = absent
            words = list(range(lengths[item]))
            for word in words if side == 0 else words[::-1]:
                h = next_state(inputs[item, word, side], weight[side], bias[side], h)
                states[word] = h
            captions.append(torch.stack(states))
        sides.append(torch.stack(captions))
    return torch.stack(sides)


def next_state(x: Tensor, weight: Tensor, bias: Tensor, h: Tensor) -> Tensor:
    """r = σ(x_r + U_r h), z = σ(x_z + U_z h), n = tanh(x_n + r U_n h), (1 - z) n + z h, unit by unit."""
    hidden = len(h)
    units = []
    for j in range(hidden):
        of_r, of_z, of_n = (
            bias[gate * hidden + j] + sum(weight[gate * hidden + j, q] * h[q] for q in range(hidden))
            for gate in range(3)
        )
        r = 1 / (1 + torch.exp(-(x[j] + of_r)))
        z = 1 / (1 + torch.exp(-(x[hidden + j] + of_z)))
        n = torch.tanh(x[2 * hidden + j] + r * of_n)
        units.append((1 - z) * n + z * h[j])
    return torch.stack(units)
