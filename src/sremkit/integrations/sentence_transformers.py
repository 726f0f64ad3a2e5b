"""SREM behind the loss contract of sentence-transformers, in place of `MultipleNegativesRankingLoss`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from sremkit.integrations.embedding_loss import EmbeddingLoss
from sremkit.integrations.warmup import Warmup
from sremkit.objectives import SREM


class SentenceTransformersLoss(EmbeddingLoss):
    """The loss of pairs of two columns: the first may be images of a multimodal model, or sentences.

    Scale and bias of the cosines are learned; `SentenceTransformerTrainer` optimizes the parameters of its loss.

    Args:
        model: a `SentenceTransformer`.
        criterion, warmup: as for `EmbeddingLoss`.
        scale: initial slope from cosine to logit.
        neutral: cosine whose logit is initially 0: between those of matched and of mismatched pairs.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: SREM | None = None,
        *,
        warmup: Warmup | int | None = None,
        scale: float = 20.0,
        neutral: float = 0.5,
    ) -> None:
        super().__init__(criterion, warmup=warmup)
        self.model = model
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.bias = nn.Parameter(torch.tensor(-scale * neutral))

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """The loss of a batch.

        Args:
            sentence_features: the inputs of the model for both columns.
            labels: (b,) integers; equal ones mark pairs that share their first column and are not each other's
                negatives. None if all differ.
        """
        columns = [self.model(features)["sentence_embedding"] for features in sentence_features]
        if len(columns) != 2:
            raise ValueError(f"SREM reads pairs, two columns of the dataset; got {len(columns)}")
        ids = labels if labels is not None and labels.numel() == len(columns[0]) else None
        first, second = (normalize(column.float()) for column in columns)
        return self.total(first, second, self.log_scale.exp(), self.bias, image_ids=ids)

    def get_config_dict(self) -> dict[str, Any]:
        """For the model card that sentence-transformers writes."""
        return {"criterion": repr(self.criterion), "scale": self.log_scale.exp().item(), "bias": self.bias.item()}
