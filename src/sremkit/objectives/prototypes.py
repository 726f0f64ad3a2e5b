"""Prototypes from neighbours within a modality, as in IN2R: what do similar images say, if the pair's own text is
wrong?

    N(i) = the k memory pairs with the images nearest to image i,   z_i = refine(texts of N(i))           [eq:prototype]

z_i is a soft prototype of the missing text; without a refinement it is the mean of the neighbours' texts, of unit
length. With the roles exchanged, texts get prototypes of images. The queries learn to find their own prototype among
those of the batch, by symmetric cross-entropy of cosines over a temperature.
Reference: Intra-Modal Neighbors Never Lie: Rectifying Inter-Modal Noisy Correspondence via Graph-Based Intra-Modal
Reasoning, ICML 2026.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.objectives.contrastive import symmetric_cross_entropy
from sremkit.objectives.logits import product


def neighbour_values(queries: Tensor, keys: Tensor, values: Tensor, *, num_neighbours: int) -> Tensor:
    """(b, k, d): the values of the keys nearest to each query, the nearest first; no gradient.

    Args:
        queries: (b, d) unit vectors of one modality.
        keys: (q, d) unit vectors of the same modality, in the memory.
        values: (q, d) the other modality of the same pairs.
    """
    if len(keys) != len(values):
        raise ValueError(f"keys and values must belong to the same pairs; got {len(keys)} and {len(values)}")
    with torch.no_grad():
        cosines = product(queries.detach(), keys.T)
        nearest = cosines.topk(min(num_neighbours, len(keys)), dim=1).indices  # (b, k)
        return values[nearest]


def mean_prototype(neighbours: Tensor) -> Tensor:
    """z (b, d) of the neighbours' values (b, k, d), without a refinement."""
    return F.normalize(neighbours.mean(dim=1), dim=-1)  # [eq:prototype]


def prototype_loss(queries: Tensor, prototypes: Tensor, *, temperature: float) -> Tensor:
    """The loss of the queries (b, d) and their prototypes (b, d), both directions: a scalar."""
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    logits = product(queries, prototypes.T) / temperature
    return (symmetric_cross_entropy(logits) + symmetric_cross_entropy(logits.T)).mean()
