"""Texts a chunk at a time, those of like length together.

A comparison of all images with all texts holds numbers for every word of every pair. Chunks bound how many
there are at once; sorting by length keeps a single long caption from padding all the others. On a
processor a chunk that stays in the cache is also the faster one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sremkit.models.matcher import Encoded

CPU_CHUNK = 1 << 23  # numbers: 32 MB in float32, of which the largest tensor stays in a processor's cache
GPU_CHUNK = 1 << 27  # numbers: 512 MB in float32, large enough to keep a GPU busy
_MOST_ITEMS = 1 << 15  # of a slice: one launch of a kernel takes no more than twice as many


class Chunk(NamedTuple):
    """Some texts, trimmed to the longest of them, and where they stood."""

    texts: Encoded
    columns: Tensor  # (k,) int64


def length_chunks(texts: Encoded, *, floats_per_word: int, least_filled: float = 0.0) -> Iterator[Chunk]:
    """All texts from the longest to the shortest, in chunks.

    Args:
        floats_per_word: how many numbers the comparison makes for one word position, all images together.
        least_filled: a text shorter than this share of a chunk's longest begins a chunk of its own.
    """
    budget = _budget(texts.parts()[0])
    order = texts.lengths.argsort(descending=True, stable=True)
    lengths = texts.lengths[order].clamp_min(1).tolist()
    start = 0
    while start < len(lengths):
        size = max(1, budget // (floats_per_word * lengths[start]))
        alike = sum(length >= least_filled * lengths[start] for length in lengths[start : start + size])
        columns = order[start : start + alike]
        yield Chunk(texts[columns].trimmed(), columns)
        start += alike


def in_first_order(parts: list[Tensor], columns: list[Tensor]) -> Tensor:
    """Join the chunks' results (n, k, ...) along the texts, each text back in its place."""
    return torch.cat(parts, dim=1).index_select(1, torch.cat(columns).argsort())


def item_slices(items: Tensor, *, floats_per_item: int) -> list[slice]:
    """Some items at a time, in nearly equal parts.

    Args:
        floats_per_item: how many numbers the comparison makes for one of them.
    """
    most = min(_MOST_ITEMS, max(1, _budget(items) // max(1, floats_per_item)))
    size = math.ceil(len(items) / math.ceil(len(items) / most))
    return [slice(start, start + size) for start in range(0, len(items), size)]


def _budget(on_device: Tensor) -> int:
    return CPU_CHUNK if on_device.device.type == "cpu" else GPU_CHUNK
