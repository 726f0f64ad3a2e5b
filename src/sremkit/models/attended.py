"""Queries of one modality that look at the other: attention, and each query's cosine with what it attends to.

Queries stand one after the other, (Q, d). Without kernels every item has as many, the absent ones included. By kernels
they are packed, the absent ones left out, and the attention comes divided by the attended vector's length, a / ‖c‖: for
queries of unit length the cosine is the sum over contexts of that times the affinity, and a itself is what adds up
to 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sremkit import kernels
from sremkit.data.batch import Batch
from sremkit.kernels.packing import Packing, aligned, by_caption, pack
from sremkit.models.attention import attend, attended_cosines
from sremkit.models.masking import known_widths
from sremkit.models.matcher import Encoded
from sremkit.models.similarity import full_precision, without_autocast


class Queries(NamedTuple):
    """The queries of all items."""

    rows: Tensor  # (Q, d), of unit length where they are present
    mask: Tensor  # (q, l) which of an item's queries are present
    packing: Packing | None  # where the rows lie; without one Q = q · l

    def by_item(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers (c, Q) of all queries as (c, q, l), and which of these are those of a query, (q, l)."""
        if self.packing is None:
            return values.unflatten(1, self.mask.shape), self.mask
        return by_caption(values, self.packing)


def kernels_serve(queries: Encoded, contexts: Encoded) -> bool:
    """Whether the kernels are switched on and hold such sizes."""
    local, mask = queries.parts()
    return kernels.uses_triton(full_precision(local)) and _fit(mask.shape[1], contexts.parts()[1].shape[1])


def kernels_hold(batch: Batch) -> bool:
    """Whether the kernels hold as many words and regions as this batch's items have, whoever asks."""
    widths = known_widths(batch)
    return widths is not None and _fit(*widths) and _fit(*reversed(widths))


def _fit(num_queries: int, num_contexts: int) -> bool:
    return kernels.fits(torch.float32, num_regions=num_contexts, num_nodes=num_queries, sim_dim=1)


def all_queries(items: Encoded) -> Queries:
    """In full precision, absent ones included."""
    local, mask = items.parts()
    return Queries(full_precision(local).flatten(0, 1), mask, None)


def packed_queries(items: Encoded) -> Queries:
    """In full precision, for the kernels.

    Where the host knows how many there are at most, nothing waits for the device.
    """
    local, mask = items.parts()
    packing = pack(mask, most=items.most_parts)
    return Queries(
        aligned(full_precision(local).flatten(0, 1).index_select(0, packing.places)), mask, packing
    )


class Attended(NamedTuple):
    """What queries found."""

    scaled: Tensor  # (c, k, Q): the attention over the contexts k, times something for each query
    cosines: Tensor  # (c, Q)
    adds_up: bool  # the something is 1

    def attention(self) -> Tensor:
        """(c, k, Q), adds up to 1 over the contexts k."""
        if self.adds_up:
            return self.scaled
        # A context without length is attended to with a sum of 0 over it, which must not be divided by.
        return self.scaled / self.scaled.sum(dim=1, keepdim=True).clamp_min(1e-12)


def attend_and_compare(
    affinity: Tensor,
    compared: Tensor,
    queries: Queries,
    gram: Tensor,
    *,
    context_mask: Tensor,
    scale: float,
) -> Attended:
    """All queries with the contexts of all items of the other modality.

    Args:
        affinity: (c, k, Q) products that attention follows from.
        compared: (c, k, Q) products of contexts with the queries themselves.
        gram: (c, k, k) products of contexts with each other.
        context_mask: (c, k)
        scale: how sharp the attention is.
    """
    with without_autocast(compared):
        if queries.packing is None:
            by_item = affinity.unflatten(2, queries.mask.shape)
            attention = attend(by_item, queries.mask, context_mask, scale=scale).flatten(2)
            cosines = attended_cosines(compared, attention, queries.rows, gram)
            return Attended(attention, cosines, adds_up=True)
        from sremkit.kernels.region_attention import region_attention  # imports Triton

        scaled = region_attention(affinity, gram, context_mask, queries.packing, scale=scale)
        return Attended(scaled, (scaled * compared).sum(dim=1), adds_up=False)
