"""SREM behind the loss contract of pytorch-metric-learning: embeddings and labels."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from sremkit.integrations.embedding_loss import EmbeddingLoss
from sremkit.integrations.warmup import Warmup
from sremkit.objectives import SREM


class MetricLearningLoss(EmbeddingLoss):
    """Called as `loss(image_emb, labels, ref_emb=text_emb, ref_labels=labels)`.

    Row i of both embeddings is pair i. Pairs with equal labels share their image and are not each other's negatives.
    Miners select triplets, which this loss does not use: `indices_tuple` has to be None.

    Args:
        criterion, warmup: as for `EmbeddingLoss`.
        scale: initial slope from cosine to logit.
        neutral: cosine whose logit is initially 0: between those of matched and of mismatched pairs.
    """

    def __init__(
        self,
        criterion: SREM | None = None,
        *,
        warmup: Warmup | int | None = None,
        scale: float = 20.0,
        neutral: float = 0.5,
    ) -> None:
        super().__init__(criterion, warmup=warmup)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.bias = nn.Parameter(torch.tensor(-scale * neutral))

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch; without `ref_emb` the first half of the rows are images, the second their texts."""
        if indices_tuple is not None:
            raise ValueError("SREM compares all images with all texts; call it without a miner's indices_tuple")
        if ref_emb is None:
            if len(embeddings) % 2:
                raise ValueError(f"without ref_emb, half of the rows are texts; got {len(embeddings)} rows")
            embeddings, ref_emb = embeddings.chunk(2)
            labels, ref_labels = labels.chunk(2)
        if ref_labels is not None and not torch.equal(labels, ref_labels):
            raise ValueError("row i of both embeddings has to be pair i, so both have to have the same labels")
        images, texts = normalize(embeddings.float()), normalize(ref_emb.float())
        return self.total(images, texts, self.log_scale.exp(), self.bias, image_ids=labels)
