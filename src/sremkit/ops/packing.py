"""Packed captions: the words of all captions one after the other, without padding.

The words of m captions are W = w_1 + ... + w_m rows; those of caption j are cu_seqlens[j] up to, but not
including, cu_seqlens[j + 1]. The *nodes* of the captions are m + W rows: first the m global nodes, then the
words.

Matrix units need sizes that are multiples of 8, and W is arbitrary. So tensors of words or nodes may have
spare rows at their end, which belong to no caption: kernels never read them and always write zeros to them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Packing(NamedTuple):
    """Where the words of each caption are."""

    cu_seqlens: Tensor  # (m + 1,) int32: the first word of each caption, and the number of all words
    mask: Tensor  # (m, w) bool, what was packed
    indices: Tensor  # (W,) int64: the position of each word among the m · w
    max_seqlen: int  # at least the number of words of the longest caption

    @property
    def num_texts(self) -> int:
        return len(self.mask)

    @property
    def num_words(self) -> int:
        return len(self.indices)

    @property
    def num_nodes(self) -> int:
        return self.num_texts + self.num_words

    def word_mask(self) -> Tensor:
        """(m, max_seqlen) bool: the words of each caption."""
        columns = torch.arange(self.max_seqlen, device=self.cu_seqlens.device)
        return columns < self.cu_seqlens.diff().unsqueeze(1)

    def node_mask(self) -> Tensor:
        """(m, 1 + max_seqlen) bool: the nodes of each caption, the global one first."""
        return F.pad(self.word_mask(), (1, 0), value=True)

    def node_rows(self) -> Tensor:
        """(m, 1 + max_seqlen) int64: the row of each node; an absent node points to its caption's global one."""
        texts = torch.arange(self.num_texts, device=self.cu_seqlens.device).unsqueeze(1)
        columns = torch.arange(self.max_seqlen, device=self.cu_seqlens.device)
        words = self.num_texts + self.cu_seqlens[:-1].long().unsqueeze(1) + columns
        return torch.where(self.node_mask(), torch.cat([texts, words], dim=1), texts)

    def padded_positions(self) -> tuple[Tensor, Tensor]:
        """(W,) int64: the position of each packed word among m · max_seqlen; and (W,) bool, False for spare rows."""
        rows = torch.arange(self.num_words, device=self.cu_seqlens.device)
        text = torch.searchsorted(self.cu_seqlens[1:].long(), rows, right=True)
        present = text < self.num_texts
        text = text.clamp_max(self.num_texts - 1)
        column = rows - self.cu_seqlens.long().index_select(0, text)
        return torch.where(present, text * self.max_seqlen + column, 0), present


def pack(mask: Tensor, *, max_total: int | None = None) -> Packing:
    """The packing of captions whose words are where `mask` (m, w) is True.

    Args:
        max_total: an upper bound of the number of words. With it the host never waits for the device, and there
            are so many rows, of which the last ones may be spare.
    """
    counts = mask.sum(dim=1, dtype=torch.int32)
    cu_seqlens = F.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    if max_total is None:
        return Packing(cu_seqlens, mask, mask.flatten().nonzero().squeeze(1), int(counts.max()))
    width, max_total = mask.shape[1], max(1, max_total)  # a spare row where there is no word at all
    nth = mask.cumsum(dim=1) - 1
    rows = torch.where(mask, cu_seqlens[:-1, None] + nth, max_total).flatten()  # absent words: a row that is cut off
    indices = torch.zeros(max_total + 1, dtype=torch.int64, device=mask.device)
    indices.scatter_(0, rows, torch.arange(mask.numel(), device=mask.device))
    return Packing(cu_seqlens, mask, indices[:max_total], width)


def pad_nodes(nodes: Tensor, packing: Packing) -> Tensor:
    """Packed nodes (n, m + W, ...) as (n, m, 1 + max_seqlen, ...), with zeros where there are none."""
    rows = packing.node_rows()
    values = nodes.index_select(1, rows.flatten()).unflatten(1, rows.shape)
    absent = ~packing.node_mask()
    return values.masked_fill(absent.view(*absent.shape, *(1,) * (values.ndim - 3)), 0.0)


def pack_nodes(values: Tensor, packing: Packing) -> Tensor:
    """The inverse of `pad_nodes`, with zeros in spare rows."""
    return torch.cat([values[:, :, 0], pack_words(values[:, :, 1:].movedim(-1, 1), packing).mT], dim=1)


def pad_words(values: Tensor, packing: Packing) -> Tensor:
    """Packed words (..., W) as (..., m, max_seqlen); where `word_mask` is False the values are arbitrary."""
    columns = torch.arange(packing.max_seqlen, device=values.device)
    rows = (packing.cu_seqlens[:-1].long().unsqueeze(1) + columns).clamp_max(values.shape[-1] - 1)
    return values.index_select(-1, rows.flatten()).unflatten(-1, rows.shape)


def pack_words(values: Tensor, packing: Packing) -> Tensor:
    """The inverse of `pad_words`: (..., m, max_seqlen) as (..., W), with zeros in spare rows."""
    positions, present = packing.padded_positions()
    return values.flatten(-2).index_select(-1, positions).masked_fill(~present, 0.0)


def align(words: Tensor) -> Tensor:
    """Rows (W, d) with zeros appended up to a multiple of 8."""
    missing = -len(words) % 8
    return F.pad(words, (0, 0, 0, missing)) if missing else words
