"""Rows of the logits of two vectors a pair, computed a block at a time and multiplied away again.

    F = scale · X Yᵀ + bias

Of the gradient G of F, embeddings need the products G Y and Gᵀ X alone, to which every block adds its part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sremkit.objectives.precision import add_product
from sremkit.objectives.processes import Share


class Gradients(NamedTuple):
    """What the gradient of the logits is multiplied into."""

    times_texts: Tensor  # (b, d): G Y
    times_images: Tensor  # (b, d): Gᵀ X
    total: Tensor  # (): sum of G


class EmbeddingBlocks:
    """Rows of the logits, or with `transposed` of their transpose, computed from embeddings when asked for.

    Of several processes each goes through the rows of its own share.
    """

    def __init__(
        self,
        rows: Tensor,
        columns: Tensor,
        scale: Tensor,
        bias: Tensor,
        *,
        rows_a_block: int,
        share: Share,
        buffers: list[Tensor] | None = None,
        transposed: bool = False,
    ) -> None:
        self.rows, self.columns, self.scale, self.bias = rows, columns, scale, bias
        self.rows_a_block, self.share = rows_a_block, share
        self.transposed = transposed
        if buffers is None:
            buffers = [rows.new_empty(rows_a_block * len(rows)) for _ in range(4)]
        self._buffers = buffers

    @property
    def T(self) -> EmbeddingBlocks:  # noqa: N802 (as for a tensor)
        """The blocks of the transpose, with the same buffers."""
        return EmbeddingBlocks(
            self.columns,
            self.rows,
            self.scale,
            self.bias,
            rows_a_block=self.rows_a_block,
            share=self.share,
            buffers=self._buffers,
            transposed=not self.transposed,
        )

    @property
    def single(self) -> bool:
        return self.rows_a_block >= self.share.rows.stop - self.share.rows.start

    @property
    def on_cpu(self) -> bool:
        return self.rows.device.type == "cpu"

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[slice]:
        first, end = self.share.rows.start, self.share.rows.stop
        # A process without rows has one empty block, so that it takes part in what is joined.
        for start in range(first, max(end, first + 1), self.rows_a_block):
            yield slice(start, min(start + self.rows_a_block, end))

    def join(self, parts: tuple[Tensor, ...]) -> Tensor:
        """(b,) what all processes found for the rows of their blocks."""
        return self.share.gather_computed(torch.cat(parts))

    def buffers(self, rows: slice) -> list[Tensor]:
        return [
            buffer[: (rows.stop - rows.start) * len(self)].view(-1, len(self)) for buffer in self._buffers
        ]

    def load(self, rows: slice, into: Tensor, scratch: Tensor) -> Tensor:
        loaded = add_product(into, self.rows[rows], self.columns.T, keep=0.0)
        return loaded.mul_(self.scale).add_(self.bias)

    def glance(self, rows: slice) -> Tensor:
        """The block's rows, to be searched."""
        block, scratch, *_ = self.buffers(rows)
        return self.load(rows, into=block, scratch=scratch)

    def deliver(self, target: Gradients, rows: slice, values: Tensor, scratch: Tensor) -> None:
        """Multiply a block of the gradient into what is known of it."""
        of_rows, of_columns = target.times_texts, target.times_images
        if self.transposed:
            of_rows, of_columns = of_columns, of_rows
        add_product(of_rows[rows], values, self.columns)
        add_product(of_columns, values.T, self.rows[rows])
        target.total.add_(values.sum())


class SharedImages:
    """Rows of the mask of pairs that share their image without being the same pair."""

    def __init__(self, image_ids: Tensor) -> None:
        self.image_ids = image_ids

    def __getitem__(self, rows: slice) -> Tensor:
        same = self.image_ids[rows, None] == self.image_ids
        same.diagonal(rows.start).fill_(False)
        return same

    def candidates(self, dtype: torch.dtype) -> Tensor:
        """(b,) how many candidates each row has: all but those that share its image."""
        _, which, counts = self.image_ids.unique(return_inverse=True, return_counts=True)
        return (len(self.image_ids) + 1 - counts[which]).to(dtype)
