"""The field's encoders: regions by one linear layer, words by an embedding and a recurrent network."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from sremkit import kernels
from sremkit.data.batch import Batch
from sremkit.models.dropout import Dropout
from sremkit.models.masking import regions_of, words_of
from sremkit.models.matcher import Encoded
from sremkit.models.normed_linear import normed_linear
from sremkit.models.similarity import full_precision, unit, without_autocast


def xavier_linear(in_features: int, out_features: int) -> nn.Linear:
    """Linear layer with weights U(-r, r), r = √6 / √(in + out), and zero bias."""
    linear = nn.Linear(in_features, out_features)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def run_gru(gru: nn.GRU, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (b, l, h) and last states (b, h) of a recurrent network that stops where an item ends.

    The directions of a bidirectional network are averaged. Recurrence adds rounding upon rounding, so states
    stay in full precision.
    """
    if kernels.uses_triton(x):
        return _run_by_kernel(gru, x, mask)
    lengths = mask.sum(dim=1).clamp_min(1).cpu()
    with without_autocast(x):
        packed = pack_padded_sequence(full_precision(x), lengths, batch_first=True, enforce_sorted=False)
        packed_output, state = gru(packed)
        output, _ = pad_packed_sequence(packed_output, batch_first=True, total_length=x.shape[1])
    if gru.bidirectional:
        output = (output[..., : gru.hidden_size] + output[..., gru.hidden_size :]) / 2
    return output, state.mean(dim=0)


def _run_by_kernel(gru: nn.GRU, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
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


class RegionEncoder(nn.Module):
    """Linear layer, then unit length for each region; absent regions are zero."""

    def __init__(self, image_dim: int, embed_size: int) -> None:
        super().__init__()
        self.project = xavier_linear(image_dim, embed_size)

    def forward(self, batch: Batch) -> Encoded:
        images, mask = regions_of(batch)
        regions = unit(self.project(images))  # (b, r, d)
        return Encoded(local=regions.masked_fill(~mask.unsqueeze(-1), 0.0), mask=mask)


class WordEncoder(nn.Module):
    """Embedding U(-0.1, 0.1), dropout, bidirectional GRU, mean of its directions, unit words."""

    def __init__(
        self,
        vocab_size: int,
        word_dim: int,
        embed_size: int,
        *,
        dropout: float = 0.0,
        unit_words: bool = True,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, word_dim)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.dropout = Dropout(dropout)
        self.gru = nn.GRU(word_dim, embed_size, batch_first=True, bidirectional=True)
        self.unit_words = unit_words

    def forward(self, batch: Batch) -> Encoded:
        states, mask = self.states(batch)
        return Encoded(local=self.finished(states, mask), mask=mask, most_parts=batch.most_words)

    def states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """States (b, w, d) of the recurrent network, and which words there are (b, w)."""
        numbers, mask = words_of(batch)
        states, _ = run_gru(self.gru, self.dropout(self.embed(numbers)), mask)
        return states, mask

    def finished(self, states: Tensor, mask: Tensor) -> Tensor:
        """States as words: of unit length, unless that was not wanted, and zero where there is no word."""
        words = unit(states) if self.unit_words else states
        return words.masked_fill(~mask.unsqueeze(-1), 0.0)


class VectorTower(nn.Module):
    """A small network from a precomputed vector to a unit vector: norm, linear, GELU, dropout, linear."""

    def __init__(self, input_dim: int, hidden_size: int, embed_size: int, *, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(input_dim),
            xavier_linear(input_dim, hidden_size),
            nn.GELU(),
            Dropout(dropout),
            xavier_linear(hidden_size, embed_size),
        )

    def forward(self, vectors: Tensor) -> Tensor:
        norm, first, *others = self.layers
        hidden = normed_linear(vectors, cast("nn.LayerNorm", norm), cast("nn.Linear", first))
        for layer in others:
            hidden = layer(hidden)
        return unit(hidden)


def check_positive(**sizes: int) -> None:
    """Refuse a width or count below 1, naming it."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
