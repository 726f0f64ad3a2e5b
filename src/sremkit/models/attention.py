"""Stacked cross attention: every word looks at the regions of every image, or the other way round.

    s_kl = v_k · w_l,   s'_kl = LReLU(s_kl) / ‖LReLU(s_k·)‖ over the words,   a_kl = softmax_k(scale · s'_kl)

for words as queries l and regions as contexts k; the attended vector is c_l = sum_k a_kl v_k. With the roles
exchanged, regions are the queries. Everything is computed for all images and all texts at once.

The attended vectors are as wide as the embeddings, one for each image and each word: far more numbers than
anything else. Where only their length and their product with the query are wanted, both follow from numbers
that are there already, c · w_l = sum_k a_kl s_kl and ‖c‖² = aᵀ G a with the Gram matrix G of the contexts.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.models.masking import masked_softmax
from sremkit.models.similarity import EPSILON, full_precision, unit, without_autocast

_TOLD_WHAT_TO_SUM_IN = torch.__version__ >= "2.8"  # batched products of half precision on a GPU


def affinities(queries: Tensor, contexts: Tensor) -> Tensor:
    """Dot products of all queries (Q, d) with all contexts (c, k, d): (c, k, Q)."""
    return (contexts.flatten(0, 1) @ queries.T).unflatten(0, contexts.shape[:2])


def attend(affinity: Tensor, query_mask: Tensor, context_mask: Tensor, *, scale: float) -> Tensor:
    """Attention (c, k, q, l) over the contexts k of an item, from affinities of the same shape.

    Args:
        query_mask: (q, l); absent queries must have zero affinities, so that the norm does not see them.
        context_mask: (c, k)
        scale: how sharp the attention is.
    """
    clipped = F.leaky_relu(full_precision(affinity), 0.1).masked_fill(~query_mask, 0.0)
    over_queries = unit(clipped, dim=3)
    return masked_softmax(scale * over_queries, context_mask[:, :, None, None], dim=1)


def gram_matrix(contexts: Tensor) -> Tensor:
    """Products of an item's contexts (c, k, d) with each other: (c, k, k), never in half precision.

    Of contexts in half precision they are those of the rounded numbers, with all digits: what an attention over the
    rounded contexts is measured by.
    """
    if contexts.dtype in (torch.bfloat16, torch.float16):
        return _HalfGram.apply(contexts)
    with without_autocast(contexts):
        return contexts @ contexts.transpose(1, 2)


class _HalfGram(torch.autograd.Function):
    """The Gram matrix (c, k, k) in float32 of half precision; a GPU multiplies that exactly, and much faster."""

    @staticmethod
    def forward(ctx: Any, contexts: Tensor) -> Tensor:
        ctx.save_for_backward(contexts)
        return _exact_products(contexts, contexts.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (contexts,) = ctx.saved_tensors
        with without_autocast(upstream):
            return (upstream + upstream.transpose(1, 2)).to(contexts.dtype) @ contexts


def _exact_products(left: Tensor, right: Tensor) -> Tensor:
    """Matrix products of half precision in float32."""
    with without_autocast(left):
        if left.is_cuda and _TOLD_WHAT_TO_SUM_IN:
            return torch.bmm(left, right, out_dtype=torch.float32)
        return left.float() @ right.float()


def attended_cosines(affinity: Tensor, attention: Tensor, queries: Tensor, gram: Tensor) -> Tensor:
    """Cosine of each query with the vector it attends to, without making that vector: (c, Q).

    Args:
        affinity: (c, k, Q) products of the queries *to be compared*, which need not be the ones that
            attention came from.
        attention: (c, k, Q)
        queries: (Q, d), the ones to be compared.
        gram: (c, k, k) of the contexts.
    """
    product = (attention * affinity).sum(dim=1)
    square = queries.square().sum(dim=-1) * _attended_square(attention, gram)
    # Rounding may take a square just below zero; the floor also keeps the root's gradient finite.
    return product / square.clamp_min(EPSILON**2).sqrt()


def unit_attention(attention: Tensor, gram: Tensor) -> Tensor:
    """Attention divided by the length of what it attends to, so that sum_k a_kl v_k is a unit vector.

    Args:
        attention: (c, k, ...) over contexts with the Gram matrix (c, k, k).
    """
    flat = attention.flatten(2)
    length = _attended_square(flat, gram).clamp_min(EPSILON**2).sqrt()  # (c, queries)
    return (flat / (length.unsqueeze(1) + EPSILON)).view_as(attention)


def _attended_square(attention: Tensor, gram: Tensor) -> Tensor:
    """Squared length of each attended vector: aᵀ G a, (c, queries) from attention (c, k, queries)."""
    return (attention * (gram @ attention)).sum(dim=1)
