"""Attention, and the cosine of each query with what it attends to: by a kernel where one serves, else plain.

The kernel gives the attention divided by the attended vector's length, a / ‖c‖. For queries of unit length the
cosine is the sum over contexts of that times the affinity, and a itself is what adds up to 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sremkit import kernels
from sremkit.kernels.packing import Packing, pack
from sremkit.models.attention import attend, attended_cosines
from sremkit.models.similarity import full_precision, without_autocast


class Attended(NamedTuple):
    """What queries found."""

    attention: Tensor  # (c, k, q, l), adds up to 1 over the contexts k
    cosines: Tensor  # (c, q, l)


def attend_and_compare(
    affinity: Tensor,
    compared: Tensor,
    queries: Tensor,
    gram: Tensor,
    *,
    query_mask: Tensor,
    context_mask: Tensor,
    scale: float,
) -> Attended:
    """All queries of all items with the contexts of all other items.

    Args:
        affinity: (c, k, q, l) products that attention follows from.
        compared: (c, k, q, l) products of contexts with the queries to be compared.
        queries: (q, l, d) those queries, of unit length where they are present.
        gram: (c, k, k) products of contexts with each other.
        query_mask: (q, l)
        context_mask: (c, k)
        scale: how sharp the attention is.
    """
    with without_autocast(queries):
        packing = _packing(affinity, context_mask) if kernels.uses_triton(full_precision(affinity)) else None
        if packing is None:
            attention = attend(affinity, query_mask, context_mask, scale=scale)
            return Attended(attention, attended_cosines(compared, attention, queries, gram))
        from sremkit.kernels.region_attention import region_attention  # imports Triton

        present = full_precision(affinity).masked_fill(~query_mask, 0.0).flatten(2)
        scaled = region_attention(present, gram, context_mask, packing, scale=scale).view_as(affinity)
        cosines = (scaled * compared).sum(dim=1)
        # A context without length is attended to with a sum of 0 over it, which must not be divided by.
        return Attended(scaled / scaled.sum(dim=1, keepdim=True).clamp_min(1e-12), cosines)


def _packing(affinity: Tensor, context_mask: Tensor) -> Packing | None:
    """All queries one after the other, absent ones included; None where the kernels do not hold such sizes."""
    num_items, length = affinity.shape[2:]
    if not kernels.fits(torch.float32, num_regions=affinity.shape[1], num_nodes=length, sim_dim=1):
        return None
    everybody = torch.ones(num_items, length, dtype=torch.bool, device=context_mask.device)
    return pack(everybody, most=everybody.numel())
