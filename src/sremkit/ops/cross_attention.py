"""Stacked cross attention: the queries of one modality attend to the contexts of every item of the other.

    s_kl = v_k · w_l,   s'_kl = LReLU(s_kl) / ‖LReLU(s_k·)‖,   a_kl = softmax_k(scale · s'_kl),   c_l = sum_k a_kl v_k

with the norm over the queries l of an item, for contexts k. Words are the queries in text-to-image (t2i)
attention, regions in image-to-text (i2t).

The attended vectors c are as wide as the embeddings, one for each item and query: far larger than any other
tensor. Where only their norm and their product with the query are needed, both follow from smaller tensors:
c_l · w_l = sum_k a_kl s_kl, and ‖c_l‖² = aᵀ G a with the Gram matrix G of the contexts.

Padded queries are computed in plain PyTorch (`attend`), packed ones by the Triton kernel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.ops.functional import EPSILON, full_precision, l2_normalize, masked_softmax, without_autocast
from sremkit.ops.packing import Packing, align, pack, pack_words, pad_words

_BMM_HAS_OUT_DTYPE = torch.__version__ >= "2.8"  # for half precision on a GPU


class Queries(NamedTuple):
    """The queries of all items."""

    rows: Tensor  # (Q, d)
    mask: Tensor  # (q, l) which of an item's queries are present
    packing: Packing | None  # where the rows are; padded queries have none, and Q = q · l

    def by_item(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Values (c, Q) of all queries as (c, q, l), and the mask (q, l) of those that are present."""
        if self.packing is None:
            return values.unflatten(1, self.mask.shape), self.mask
        return pad_words(values, self.packing), self.packing.word_mask()


def padded_queries(local: Tensor, mask: Tensor) -> Queries:
    """Queries (q, l, d), absent ones included."""
    return Queries(local.flatten(0, 1), mask, None)


def packed_queries(local: Tensor, mask: Tensor, *, max_total: int | None) -> Queries:
    """Queries (q, l, d) without the absent ones, for the kernel; `max_total` as for `pack`."""
    packing = pack(mask, max_total=max_total)
    return Queries(align(local.flatten(0, 1).index_select(0, packing.indices)), mask, packing)


def affinities(queries: Tensor, contexts: Tensor) -> Tensor:
    """Dot products of all queries (Q, d) with all contexts (c, k, d): (c, k, Q)."""
    return (contexts.flatten(0, 1) @ queries.T).unflatten(0, contexts.shape[:2])


def attend(affinity: Tensor, query_mask: Tensor, context_mask: Tensor, *, scale: float) -> Tensor:
    """Attention (c, k, q, l) over the contexts k, from affinities of the same shape; masks (q, l) and (c, k)."""
    clipped = F.leaky_relu(full_precision(affinity), 0.1).masked_fill(~query_mask, 0.0)
    return masked_softmax(scale * l2_normalize(clipped, dim=3), context_mask[:, :, None, None], dim=1)


def unit_attention(
    affinity: Tensor,
    gram: Tensor,
    context_mask: Tensor,
    queries: Queries,
    *,
    scale: float,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Attention divided by the norm of the attended vector, (c, k, Q): so that sum_k a_kl v_k has unit norm.

    Args:
        affinity, gram, context_mask: (c, k, Q), (c, k, k) and (c, k).
        dtype: of the result, for packed queries.
    """
    if queries.packing is not None:
        from sremkit.ops.triton.cross_attention import packed_attention

        return packed_attention(affinity, gram, context_mask, queries.packing, scale=scale, dtype=dtype)
    with without_autocast(affinity):
        attention = attend(affinity.unflatten(2, queries.mask.shape), queries.mask, context_mask, scale=scale)
        return divide_by_norm(attention.flatten(2), gram)


def packed_reference(affinity: Tensor, gram: Tensor, context_mask: Tensor, packing: Packing, scale: float) -> Tensor:
    """`unit_attention` of packed queries in plain PyTorch."""
    spare = affinity.shape[2] - packing.num_words
    attention = attend(pad_words(affinity, packing), packing.word_mask(), context_mask, scale=scale)
    unit = divide_by_norm(attention.flatten(2), gram).view_as(attention)
    return F.pad(pack_words(unit, packing), (0, spare))


def divide_by_norm(attention: Tensor, gram: Tensor) -> Tensor:
    """Attention (c, k, Q) divided by the norm of the attended vectors."""
    norm = _attended_square(attention, gram).clamp_min(EPSILON**2).sqrt()  # (c, Q)
    return attention / (norm.unsqueeze(1) + EPSILON)


class Attended(NamedTuple):
    """Attention, and the cosine of each query with its attended vector."""

    scaled: Tensor  # (c, k, Q): the attention over the contexts k, times a factor for each query
    cosines: Tensor  # (c, Q)
    sums_to_one: bool  # the factor is 1

    def attention(self) -> Tensor:
        """(c, k, Q), sums to 1 over the contexts k."""
        if self.sums_to_one:
            return self.scaled
        # Contexts that are all zero have a sum of 0, which must not be divided by.
        return self.scaled / self.scaled.sum(dim=1, keepdim=True).clamp_min(1e-12)


def attended_cosines(
    affinity: Tensor, compared: Tensor, queries: Queries, gram: Tensor, context_mask: Tensor, scale: float
) -> Attended:
    """Cosine of each query with the vector it attends to, without computing that vector.

    Args:
        affinity: (c, k, Q) products that the attention follows from.
        compared: (c, k, Q) products of the contexts with `queries`, which have unit norm.
        gram: (c, k, k) products of the contexts with each other.
        context_mask: (c, k)
        scale: inverse temperature of the softmax.
    """
    with without_autocast(compared):
        if queries.packing is not None:
            scaled = unit_attention(affinity, gram, context_mask, queries, scale=scale)
            return Attended(scaled, (scaled * compared).sum(dim=1), sums_to_one=False)
        by_item = affinity.unflatten(2, queries.mask.shape)
        attention = attend(by_item, queries.mask, context_mask, scale=scale).flatten(2)
        product = (attention * compared).sum(dim=1)
        square = queries.rows.square().sum(dim=-1) * _attended_square(attention, gram)
        # Rounding may take a square just below zero; the floor also keeps the root's gradient finite.
        cosines = product / square.clamp_min(EPSILON**2).sqrt()
        return Attended(attention, cosines, sums_to_one=True)


def _attended_square(attention: Tensor, gram: Tensor) -> Tensor:
    """Squared norm of each attended vector: aᵀ G a, (c, Q) from attention (c, k, Q)."""
    return (attention * (gram @ attention)).sum(dim=1)


def gram_matrix(contexts: Tensor) -> Tensor:
    """Products of an item's contexts (c, k, d) with each other: (c, k, k), never in half precision.

    For contexts in half precision these are the exact products of the rounded vectors, as attention over the
    rounded contexts needs them.
    """
    if contexts.dtype in (torch.bfloat16, torch.float16):
        return _HalfGram.apply(contexts)
    with without_autocast(contexts):
        return contexts @ contexts.transpose(1, 2)


class _HalfGram(torch.autograd.Function):
    """The Gram matrix (c, k, k) in float32 of contexts in half precision, which a GPU multiplies much faster."""

    @staticmethod
    def forward(ctx: Any, contexts: Tensor) -> Tensor:
        ctx.save_for_backward(contexts)
        with without_autocast(contexts):
            if contexts.is_cuda and _BMM_HAS_OUT_DTYPE:
                return torch.bmm(contexts, contexts.transpose(1, 2), out_dtype=torch.float32)
            return contexts.float() @ contexts.transpose(1, 2).float()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (contexts,) = ctx.saved_tensors
        with without_autocast(upstream):
            return (upstream + upstream.transpose(1, 2)).to(contexts.dtype) @ contexts
