"""Both ends of a backbone: encoders of regions, words and precomputed vectors; cosines and their logits."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.models.encoding import Encoded
from sremkit.models.layers.masking import regions_of, words_of
from sremkit.ops.functional import Dropout, full_precision, l2_normalize, without_autocast
from sremkit.ops.gru import run_gru
from sremkit.ops.normed_linear import normed_linear


def xavier_linear(in_features: int, out_features: int) -> nn.Linear:
    """Linear layer with weights U(-r, r), r = √6 / √(in + out), and zero bias."""
    linear = nn.Linear(in_features, out_features)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class RegionEncoder(nn.Module):
    """Linear layer, then L2 normalisation of each region; absent regions are zero."""

    def __init__(self, image_dim: int, embed_size: int) -> None:
        super().__init__()
        self.project = xavier_linear(image_dim, embed_size)

    def forward(self, batch: Batch) -> Encoded:
        images, mask = regions_of(batch)
        regions = l2_normalize(self.project(images))  # (b, r, d)
        present = regions.masked_fill(~mask.unsqueeze(-1), 0.0)
        return Encoded(local=present, mask=mask, max_total_parts=mask.numel())


class WordEncoder(nn.Module):
    """Embedding U(-0.1, 0.1), dropout, bidirectional GRU, mean of its directions, L2 normalisation."""

    def __init__(
        self, vocab_size: int, word_dim: int, embed_size: int, *, dropout: float = 0.0, unit_words: bool = True
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, word_dim)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.dropout = Dropout(dropout)
        self.gru = nn.GRU(word_dim, embed_size, batch_first=True, bidirectional=True)
        self.unit_words = unit_words

    def forward(self, batch: Batch) -> Encoded:
        states, mask = self.states(batch)
        return Encoded(local=self.finish(states, mask), mask=mask, max_total_parts=batch.max_total_words)

    def states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """States (b, w, d) of the GRU, and the mask (b, w) of the words."""
        indices, mask = words_of(batch)
        words = self.embed(indices.int())  # int32 indices are sorted faster in the backward pass on a GPU
        states, _ = run_gru(self.gru, self.dropout(words), mask)
        return states, mask

    def finish(self, states: Tensor, mask: Tensor) -> Tensor:
        """Word vectors from states: L2-normalised if `unit_words`, and zero where there is no word."""
        words = l2_normalize(states) if self.unit_words else states
        return words.masked_fill(~mask.unsqueeze(-1), 0.0)


class VectorTower(nn.Module):
    """An MLP from a precomputed vector to a unit vector: norm, linear, GELU, dropout, linear."""

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
        return l2_normalize(hidden)


class LogitScale(nn.Module):
    """logit = scale · similarity + bias, both learned; the scale is stored as its logarithm.

    It changes no ranking, but energies and sigmoids. Initially a similarity of `neutral` has the logit 0, so
    with the default scale of 10 a cosine of 0.9 has +4 and one of 0.1 has -4.
    """

    def __init__(self, *, scale: float = 10.0, neutral: float = 0.5) -> None:
        super().__init__()
        if scale <= 0:
            raise ValueError(f"scale must be positive, got {scale}")
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.bias = nn.Parameter(torch.tensor(-scale * neutral))

    def forward(self, similarity: Tensor) -> Tensor:
        return self.log_scale.exp() * full_precision(similarity) + self.bias


def all_cosines(image_emb: Tensor, text_emb: Tensor) -> Tensor:
    """Dot products of unit vectors, all images with all texts: (n, m), never in half precision."""
    with without_autocast(image_emb):
        return full_precision(image_emb) @ full_precision(text_emb).T


def check_positive(**sizes: int) -> None:
    """Refuse a width or count below 1, naming it."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
