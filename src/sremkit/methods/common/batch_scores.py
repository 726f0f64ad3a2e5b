"""What methods compute from a batch in the same way: similarities, candidate masks, probabilities, vectors."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.models.layers.masking import masked_mean
from sremkit.models.matcher import Encoded
from sremkit.objectives.logits import distinct_images, mask_invalid, product

Similarity = Literal["sigmoid", "logit"]


def similarity_of(logits: Tensor, similarity: Similarity) -> Tensor:
    """Scores that a margin or temperature refers to: sigmoids, or the logits themselves; in float32 at least."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.sigmoid() if similarity == "sigmoid" else logits


def candidate_mask(batch: Batch, mask_repeated_images: bool) -> Tensor:
    """(b, b) bool, symmetric: which candidates count; captions of the same image do not, if they are to be masked."""
    if mask_repeated_images:
        return distinct_images(batch.image_id)
    return torch.ones(len(batch), len(batch), dtype=torch.bool, device=batch.image_id.device)


def match_probability(logits: Tensor, valid: Tensor) -> Tensor:
    """P_ii (b,) of each given pair, mean of both directions, without gradient; `valid` as of `candidate_mask`."""
    masked = mask_invalid(logits.detach(), valid)
    return (masked.softmax(1).diagonal() + masked.softmax(0).diagonal()) / 2


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
