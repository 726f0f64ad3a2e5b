"""One batch of pairs, as a model receives it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """b pairs. Masks are True where an element is present. No field states whether a pair is correct.

    Images are region features (b, r, d) with a mask, or one vector (b, d) or pixels (b, 3, h, w) without one; texts are
    word ids (b, w) with a mask, or one vector each (b, e), or both.
    """

    pair_id: Tensor  # (b,) int64: row of the pair in its `Pairs`
    image_id: Tensor  # (b,) int64: number of the image; equal numbers are the same image
    images: Tensor | None = None  # (b, r, d), (b, d) or (b, 3, h, w) float32
    region_mask: Tensor | None = None  # (b, r) bool
    words: Tensor | None = None  # (b, w) int64, 0 where absent
    word_mask: Tensor | None = None  # (b, w) bool
    sentences: Tensor | None = None  # (b, e) float32
    max_total_words: int | None = None  # upper bound on `word_mask.sum()`, known without reading the device

    def __len__(self) -> int:
        return len(self.pair_id)

    def __getitem__(self, items: slice) -> Batch:
        return self._map(lambda tensor: tensor[items])

    def to(self, device: torch.device | str, *, non_blocking: bool = False, copy: bool = False) -> Batch:
        """Move to a device; with `copy` the result never shares memory with this batch."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking, copy=copy))

    def pin_memory(self) -> Batch:
        return self._map(Tensor.pin_memory)

    def _map(self, function) -> Batch:
        changed = {
            f.name: function(getattr(self, f.name)) for f in fields(self) if isinstance(getattr(self, f.name), Tensor)
        }
        return replace(self, **changed)
