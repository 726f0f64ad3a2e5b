"""The field's encoders: regions by one linear layer, words by an embedding and a recurrent network."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.models.dropout import Dropout
from sremkit.models.gru import run_gru
from sremkit.models.masking import regions_of, words_of
from sremkit.models.matcher import Encoded
from sremkit.models.normed_linear import normed_linear
from sremkit.models.similarity import unit


def xavier_linear(in_features: int, out_features: int) -> nn.Linear:
    """Linear layer with weights U(-r, r), r = √6 / √(in + out), and zero bias."""
    linear = nn.Linear(in_features, out_features)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class RegionEncoder(nn.Module):
    """Linear layer, then unit length for each region; absent regions are zero."""

    def __init__(self, image_dim: int, embed_size: int) -> None:
        super().__init__()
        self.project = xavier_linear(image_dim, embed_size)

    def forward(self, batch: Batch) -> Encoded:
        images, mask = regions_of(batch)
        regions = unit(self.project(images))  # (b, r, d)
        present = regions.masked_fill(~mask.unsqueeze(-1), 0.0)
        return Encoded(local=present, mask=mask, most_parts=mask.numel())


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
        words = self.embed(numbers.int())  # on a GPU the gradient sorts them, by as many digits as they have
        states, _ = run_gru(self.gru, self.dropout(words), mask)
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
