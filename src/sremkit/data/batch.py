"""One batch of pairs, as a model sees it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """b pairs. Masks are True where something is present. No field says whether a pair is right.

    Images come as region features (b, r, d) with a mask, or as one vector each (b, d) without one;
    texts as word numbers (b, w) with a mask, or as one vector each (b, e), or both.
    """

    pair_id: Tensor  # (b,) int64: row of the pair in its `Pairs`
    image_id: Tensor  # (b,) int64: number of the image; equal numbers are the same picture
    images: Tensor | None = None  # (b, r, d) or (b, d) float32
    region_mask: Tensor | None = None  # (b, r) bool
    words: Tensor | None = None  # (b, w) int64, 0 where absent
    word_mask: Tensor | None = None  # (b, w) bool
    sentences: Tensor | None = None  # (b, e) float32
    most_words: int | None = None  # no more words than this are present; known to the host, where it is known
    skipped: tuple[str, ...] = ()  # pairs that could not be read, in words

    def __len__(self) -> int:
        return len(self.pair_id)

    def __getitem__(self, items: slice) -> Batch:
        return self._each(lambda tensor: tensor[items])

    def to(self, device: torch.device | str, *, non_blocking: bool = False, copy: bool = False) -> Batch:
        """On the device; with `copy` sharing nothing with this one, wherever that lies."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking, copy=copy))

    def pin_memory(self) -> Batch:
        return self._each(Tensor.pin_memory)

    def _each(self, change) -> Batch:
        changed = {
            f.name: change(getattr(self, f.name))
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        return replace(self, **changed)
