"""VSE∞: one vector an image and one a text, by generalised pooling, compared by cosine.

    image = pool(W x + MLP(x)),  text = pool(biGRU(words)),  logit = scale · cos(image, text) + bias

Reference: Chen et al., "Learning the Best Pooling Strategy for Visual Semantic Embedding", CVPR 2021.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.models import BACKBONES
from sremkit.models.layers.encoders import LogitScale, WordEncoder, all_cosines, check_positive, xavier_linear
from sremkit.models.layers.masking import MaskedBatchNorm, regions_of
from sremkit.models.layers.pooling import GeneralizedPooling
from sremkit.models.matcher import Encoded, Matcher
from sremkit.ops.functional import l2_normalize


@BACKBONES.register("vse-infty")
class VseInfinity(Matcher):
    """One vector each by learned pooling of regions and of words, compared by cosine.

    Args:
        mlp_size: hidden width of the image's residual network; half of `embed_size` unless given.
        position_dim: width of the position codes that the pooling weights are computed from.
        dropout: on word embeddings.
    """

    supports_cuda_graphs = True
    small_options: ClassVar[dict[str, Any]] = {"embed_size": 8, "word_dim": 6, "position_dim": 4}

    def __init__(
        self,
        *,
        vocab_size: int,
        image_dim: int = 2048,
        embed_size: int = 1024,
        word_dim: int = 300,
        mlp_size: int | None = None,
        position_dim: int = 32,
        dropout: float = 0.0,
        scale: float = 10.0,
        neutral: float = 0.5,
    ) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size, image_dim=image_dim, embed_size=embed_size, word_dim=word_dim)
        mlp_size = mlp_size or max(1, embed_size // 2)
        self.project = xavier_linear(image_dim, embed_size)
        self.mlp_in = nn.Linear(image_dim, mlp_size)
        self.mlp_norm = MaskedBatchNorm(mlp_size)
        self.mlp_out = nn.Linear(mlp_size, embed_size)
        self.words = WordEncoder(vocab_size, word_dim, embed_size, dropout=dropout, unit_words=False)
        self.pool_regions = GeneralizedPooling(position_dim)
        self.pool_words = GeneralizedPooling(position_dim)
        self.to_logit = LogitScale(scale=scale, neutral=neutral)

    def encode_images(self, batch: Batch) -> Encoded:
        images, mask = regions_of(batch)
        hidden = torch.relu(self.mlp_norm(self.mlp_in(images), mask.unsqueeze(-1)))  # (b, r, mlp_size)
        regions = self.project(images) + self.mlp_out(hidden)  # (b, r, d)
        return Encoded(pooled=l2_normalize(self.pool_regions(regions, mask)))

    def encode_texts(self, batch: Batch) -> Encoded:
        words = self.words(batch)
        return Encoded(pooled=l2_normalize(self.pool_words(words.local, words.mask)))

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.to_logit(all_cosines(images.whole(), texts.whole()))
