"""One vector for each image and text of a batch, and the cosines within a modality."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.models.layers.masking import masked_mean
from sremkit.models.matcher import Encoded
from sremkit.objectives.logits import product


def pooled_vectors(encoded: Encoded) -> Tensor:
    """One unit vector per item (n, d), in float32 at least: the mean of its regions or words, or its global vector."""
    if encoded.local is None:
        vectors = encoded.whole()
    else:
        local, mask = encoded.parts()
        vectors = masked_mean(local, mask.unsqueeze(-1), dim=1)
    return F.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=-1)


def cosines_within(encoded: Encoded) -> Tensor:
    """The cosines between all items of one modality: (n, n), 1 on the diagonal."""
    vectors = pooled_vectors(encoded)
    return product(vectors, vectors.T)
