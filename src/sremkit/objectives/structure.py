"""Geometrical structure of a batch, as in GSC: a right pair lies among the other images as among the other texts.

    T_ij = sum_k y_k^2 A_ik B_jk,   l_i = -log softmax(T_i / temperature)_i                               [eq:structure]
    c_i = cos((y_k A_ik)_k, (y_k B_ik)_k)                                                     [eq:structure-consistency]

A and B (b, b) are the similarities of all images with each other and of all texts with each other; the labels y weigh
the other pairs, so that wrong ones do not describe a place. l_i is low and c_i high where row i of A and row i of B
agree.
Reference: Zhao et al., Mitigating Noisy Correspondence by Geometrical Structure Consistency Learning, CVPR 2024.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.objectives.logits import as_logits, mask_invalid, product


def structure_loss(
    image_similarity: Tensor, text_similarity: Tensor, label: Tensor, *, temperature: float, valid: Tensor | None = None
) -> Tensor:
    """The loss of each pair (b,).

    Args:
        image_similarity: A, (b, b).
        text_similarity: B, (b, b).
        label: y, (b,) in [0, 1].
        valid: (b, b) bool, True where a text counts as another place than that of the row; for repeated images.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    images, texts = as_logits(image_similarity) * label, as_logits(text_similarity) * label
    agreement = product(images, texts.T) / temperature
    target = torch.arange(len(agreement), device=agreement.device)
    return F.cross_entropy(mask_invalid(agreement, valid), target, reduction="none")  # [eq:structure]


def structure_consistency(image_similarity: Tensor, text_similarity: Tensor, label: Tensor) -> Tensor:
    """c (b,) in [-1, 1]; 0 where all labels are 0."""
    images, texts = as_logits(image_similarity) * label, as_logits(text_similarity) * label
    return F.cosine_similarity(images, texts, dim=1)  # [eq:structure-consistency]
