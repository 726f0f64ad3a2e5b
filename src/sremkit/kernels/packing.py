"""Captions one after the other, without padding.

All words of m captions are W = w_1 + ... + w_m rows. The *nodes* of the captions are m + W rows: first the m
global nodes, then the words. So the nodes of caption j are row j and the rows m + starts[j] up to, and
without, m + starts[j + 1].

Matrix units want sizes that are multiples of 8, and W is what it happens to be. So tensors of words or nodes may
have a few rows more at their end, which belong to no caption: kernels neither read them nor leave them unset.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Packing(NamedTuple):
    """Where the words of each caption lie."""

    starts: Tensor  # (m + 1,) int32: the first word of each caption, and the number of all words
    mask: Tensor  # (m, w) bool, what was packed
    places: Tensor  # (W,) int64: where each word stood among the m · w
    longest: int  # words of the longest caption, or more

    @property
    def num_texts(self) -> int:
        return len(self.mask)

    @property
    def num_words(self) -> int:
        return len(self.places)

    @property
    def num_nodes(self) -> int:
        return self.num_texts + self.num_words

    @property
    def text_of_word(self) -> Tensor:
        """(W,) int64: the caption of each word; m for rows that belong to none."""
        rows = torch.arange(self.num_words, device=self.starts.device)
        return torch.searchsorted(self.starts[1:].long(), rows, right=True)

    def node_mask(self) -> Tensor:
        """(m, 1 + longest) bool: the nodes of each caption, the global one first."""
        counts = self.starts.diff().unsqueeze(1)
        return torch.arange(1 + self.longest, device=counts.device) <= counts

    def node_rows(self) -> Tensor:
        """(m, 1 + longest) int64: the row of each node; an absent node points to its caption's global one."""
        texts = torch.arange(self.num_texts, device=self.starts.device).unsqueeze(1)
        steps = torch.arange(self.longest, device=self.starts.device)
        words = self.num_texts + self.starts[:-1].long().unsqueeze(1) + steps
        rows = torch.cat([texts, words], dim=1)
        return torch.where(self.node_mask(), rows, texts)


def pack(mask: Tensor, *, most: int | None = None) -> Packing:
    """The packing of captions whose words are where `mask` (m, w) is True.

    Args:
        most: how many words there are at most. With it nothing waits for the device, and there are so many
            rows, of which the last ones may belong to no caption.
    """
    counts = mask.sum(dim=1, dtype=torch.int32)
    starts = F.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    if most is None:
        return Packing(starts, mask, mask.flatten().nonzero().squeeze(1), int(counts.max()))
    width, most = mask.shape[1], max(1, most)  # a row that nobody reads, where there is no word at all
    nth = mask.cumsum(dim=1) - 1
    rows = torch.where(mask, starts[:-1, None] + nth, most).flatten()  # absent words: a row that is cut off
    places = torch.zeros(most + 1, dtype=torch.int64, device=mask.device)
    places.scatter_(0, rows, torch.arange(mask.numel(), device=mask.device))
    return Packing(starts, mask, places[:most], width)


def padded(nodes: Tensor, packing: Packing) -> Tensor:
    """Packed nodes (n, m + W, ...) as (n, m, 1 + longest, ...), with zeros where there are none."""
    rows = packing.node_rows()
    values = nodes.index_select(1, rows.flatten()).unflatten(1, rows.shape)
    absent = ~packing.node_mask()
    return values.masked_fill(absent.view(*absent.shape, *(1,) * (values.ndim - 3)), 0.0)


def packed(values: Tensor, packing: Packing) -> Tensor:
    """The reverse of `padded`."""
    whole, words = values[:, :, 0], values[:, :, 1:].flatten(1, 2)
    present = packing.node_mask()[:, 1:].flatten().nonzero().squeeze(1)
    return torch.cat([whole, words.index_select(1, present)], dim=1)


def by_caption(of_words: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
    """Numbers of packed words (c, W) as (c, m, longest), and which of them belong to a caption, (m, longest)."""
    columns = torch.arange(packing.longest, device=of_words.device)
    rows = (packing.starts[:-1].long().unsqueeze(1) + columns).clamp_max(of_words.shape[1] - 1)
    values = of_words.index_select(1, rows.flatten()).unflatten(1, rows.shape)
    return values, columns < packing.starts.diff().unsqueeze(1)


def aligned(words: Tensor) -> Tensor:
    """Rows (W, d) with zeros added up to a multiple of 8."""
    missing = -len(words) % 8
    return F.pad(words, (0, 0, 0, missing)) if missing else words
