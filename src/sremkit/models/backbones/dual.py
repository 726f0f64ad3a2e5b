"""Dual encoder on precomputed image and sentence vectors: two small towers and a cosine.

    logit_ij = scale · cos(f(x_i), g(y_j)) + bias

It trains in minutes on a laptop's CPU, which makes it the backbone to try an objective with.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.errors import DataError
from sremkit.models import BACKBONES
from sremkit.models.layers.encoders import LogitScale, VectorTower, all_cosines, check_positive
from sremkit.models.layers.masking import masked_mean, regions_of
from sremkit.models.matcher import Encoded, Matcher


@BACKBONES.register("dual")
class DualEncoder(Matcher):
    """Two small towers over precomputed image and sentence vectors, compared by cosine.

    Args:
        image_dim: width of an image vector; images with regions are averaged over them.
        text_dim: width of a sentence vector.
        dropout: on the hidden layer of each tower.
    """

    image_input = "vectors"
    text_input = "sentences"
    supports_cuda_graphs = True
    small_options: ClassVar[dict[str, Any]] = {"hidden_size": 12, "embed_size": 8, "dropout": 0.0}

    def __init__(
        self,
        *,
        image_dim: int,
        text_dim: int,
        hidden_size: int = 1024,
        embed_size: int = 512,
        dropout: float = 0.5,
        scale: float = 10.0,
        neutral: float = 0.5,
    ) -> None:
        super().__init__()
        check_positive(image_dim=image_dim, text_dim=text_dim, hidden_size=hidden_size, embed_size=embed_size)
        self.image_tower = VectorTower(image_dim, hidden_size, embed_size, dropout=dropout)
        self.text_tower = VectorTower(text_dim, hidden_size, embed_size, dropout=dropout)
        self.to_logit = LogitScale(scale=scale, neutral=neutral)

    def encode_images(self, batch: Batch) -> Encoded:
        regions, mask = regions_of(batch)
        if batch.region_mask is None and regions.shape[1] == 1:  # one vector an image, no mean to take
            return Encoded(pooled=self.image_tower(regions.squeeze(1)))
        return Encoded(pooled=self.image_tower(masked_mean(regions, mask.unsqueeze(-1), dim=1)))

    def encode_texts(self, batch: Batch) -> Encoded:
        if batch.sentences is None:
            raise DataError("the batch holds no sentence vectors, which 'dual' needs; give the data text features")
        return Encoded(pooled=self.text_tower(batch.sentences))

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.to_logit(all_cosines(images.whole(), texts.whole()))
