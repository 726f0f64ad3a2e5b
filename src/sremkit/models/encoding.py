"""Encoded items of one modality, and texts in chunks of similar length.

A comparison of all images with all texts holds tensors for every word of every pair. Chunks bound their size;
sorting by length keeps a single long caption from padding all the others. On a CPU a chunk that fits the
cache is also faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CPU_CHUNK = 1 << 23  # floats: 32 MB in float32, of which the largest tensor fits a CPU's cache
GPU_CHUNK = 1 << 27  # floats: 512 MB in float32, large enough to keep a GPU busy
_MAX_ITEMS = 1 << 15  # of a slice: half of what one kernel launch takes


@dataclass(frozen=True, eq=False)
class Encoded:
    """Items of one modality after encoding; the first axis of every tensor is the items'.

    A backbone fills what its comparison needs: local vectors with their mask, one global vector, or both.
    Absent local vectors are zero.
    """

    local: Tensor | None = None  # (n, l, d) regions or words
    mask: Tensor | None = None  # (n, l) bool, True where a region or word is present
    pooled: Tensor | None = None  # (n, d)
    max_total_parts: int | None = None  # an upper bound of the number of local vectors, if the host knows one

    def __len__(self) -> int:
        return next(len(t) for t in self._tensors().values())

    def __getitem__(self, items: slice | Tensor) -> Encoded:
        taken = replace(self, **{name: t[items] for name, t in self._tensors().items()})
        if taken.max_total_parts is None or taken.mask is None:
            return taken
        bound = taken.mask.numel()
        if isinstance(items, slice):  # which repeats no item
            bound = min(taken.max_total_parts, bound)
        return replace(taken, max_total_parts=bound)

    def to(self, device: torch.device | str) -> Encoded:
        return replace(self, **{name: t.to(device) for name, t in self._tensors().items()})

    def parts(self) -> tuple[Tensor, Tensor]:
        """Local vectors (n, l, d) and their mask (n, l), of a backbone that keeps them."""
        if self.local is None or self.mask is None:
            raise ValueError("these items were encoded without local vectors, by another backbone")
        return self.local, self.mask

    def whole(self) -> Tensor:
        """Global vectors (n, d), of a backbone that keeps them."""
        if self.pooled is None:
            raise ValueError("these items were encoded without global vectors, by another backbone")
        return self.pooled

    @property
    def lengths(self) -> Tensor:
        """The number of local vectors of each item: (n,) int64; 0 where a backbone keeps none."""
        if self.mask is None:
            return torch.zeros(len(self), dtype=torch.long)
        return self.mask.sum(dim=1)

    def trimmed(self) -> Encoded:
        """Without trailing columns of padding only."""
        return self if self.mask is None else self._cut_to(trimmed_width(self.mask))

    def take(self, items: Tensor, lengths: Tensor) -> Encoded:
        """These items without trailing padding; the host knows their lengths and need not wait for the device."""
        if self.mask is None:
            return self[items]
        taken = self[items.to(self.mask.device)]._cut_to(max(1, int(lengths.max())))
        return replace(taken, max_total_parts=int(lengths.sum()))

    def _cut_to(self, width: int) -> Encoded:
        """Without the columns from `width` on."""
        if self.local is None or self.mask is None or self.mask.shape[1] <= width:
            return self
        return replace(self, local=self.local[:, :width].contiguous(), mask=self.mask[:, :width].contiguous())

    @staticmethod
    def concatenate(parts: Sequence[Encoded]) -> Encoded:
        """All items of several batches, padded to the longest."""
        widest = max(0 if part.mask is None else part.mask.shape[1] for part in parts)
        padded = [part._padded_to(widest) for part in parts]
        names = padded[0]._tensors()
        joined: dict[str, Any] = {name: torch.cat([getattr(p, name) for p in padded]) for name in names}
        return Encoded(**joined)

    def _padded_to(self, width: int) -> Encoded:
        if self.local is None or self.mask is None or self.mask.shape[1] == width:
            return self
        missing = width - self.mask.shape[1]
        return replace(self, local=F.pad(self.local, (0, 0, 0, missing)), mask=F.pad(self.mask, (0, missing)))

    def _tensors(self) -> dict[str, Any]:
        return {f.name: t for f in fields(self) if isinstance(t := getattr(self, f.name), Tensor)}


def trimmed_width(mask: Tensor) -> int:
    """The number of columns of `mask` without trailing padding; at least 1."""
    present = mask.any(dim=0).nonzero()
    return int(present[-1]) + 1 if len(present) else 1


def length_chunks(texts: Encoded, *, floats_per_word: int, min_fill: float = 0.0) -> Iterator[tuple[Encoded, Tensor]]:
    """All texts from the longest to the shortest: the texts of each chunk, trimmed, and their columns (k,).

    Args:
        floats_per_word: how many floats the comparison holds for one word position, all images together.
        min_fill: a text shorter than this fraction of a chunk's longest begins a new chunk.
    """
    budget = _budget(texts.parts()[0])
    order = texts.lengths.argsort(descending=True, stable=True)
    lengths = texts.lengths[order].clamp_min(1).tolist()
    start = 0
    while start < len(lengths):
        size = max(1, budget // (floats_per_word * lengths[start]))
        similar = sum(length >= min_fill * lengths[start] for length in lengths[start : start + size])
        columns = order[start : start + similar]
        yield texts[columns].trimmed(), columns
        start += similar


def in_text_order(parts: Sequence[Tensor], columns: Sequence[Tensor | None]) -> Tensor:
    """The chunks' results (n, k, ...) in the original order of the texts; columns None: one chunk of all in order."""
    indices = [column for column in columns if column is not None]
    if not indices:
        return parts[0]
    return torch.cat(list(parts), dim=1).index_select(1, torch.cat(indices).argsort())


def item_slices(items: Tensor, *, floats_per_item: int) -> list[slice]:
    """Slices of nearly equal size, for a comparison that holds so many floats for one item."""
    most = min(_MAX_ITEMS, max(1, _budget(items) // max(1, floats_per_item)))
    size = math.ceil(len(items) / math.ceil(len(items) / most))
    return [slice(start, start + size) for start in range(0, len(items), size)]


def _budget(on_device: Tensor) -> int:
    return CPU_CHUNK if on_device.device.type == "cpu" else GPU_CHUNK
