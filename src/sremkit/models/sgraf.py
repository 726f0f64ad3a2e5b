"""SGRAF: an SGR and a SAF side by side; the similarity is the mean of the two.

    S = (σ(a) + σ(b)) / 2,   logit = log( S / (1 - S) )

with a, b the logits of SGR and SAF. The field averages the two similarities after the sigmoid; the logit here
is the one whose sigmoid is that mean. The two share no weights, and train here together, where the original
trains each on its own (build `sgr` and `saf` for that, and average their sigmoids).

Reference: Diao et al., "Similarity Reasoning and Filtration for Image-Text Matching", AAAI 2021.
"""

from __future__ import annotations

from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.models import BACKBONES
from sremkit.models.beside import halves, logit_of_mean, side_by_side
from sremkit.models.matcher import Encoded, Matcher
from sremkit.models.saf import SimilarityAttentionFiltration, Statistics
from sremkit.models.sgr import SimilarityGraphReasoning


@BACKBONES.register("sgraf")
class SimilarityGraphReasoningAndFiltration(Matcher):
    """SGR and SAF side by side, the mean of their similarities (SGRAF).

    Args:
        sim_dim: width of a similarity vector.
        num_steps: SGR's steps of reasoning.
        num_regions: the most regions an image has; the region's index is a normalisation channel.
        attention_scale: sharpness of the words' attention to regions.
        dropout: on word embeddings and in the global attention.
        statistics: what SAF's filter is normalised over in training; see `saf`.
    """

    recordable = True

    def __init__(
        self,
        *,
        vocab_size: int,
        image_dim: int = 2048,
        embed_size: int = 1024,
        word_dim: int = 300,
        sim_dim: int = 256,
        num_steps: int = 3,
        num_regions: int = 36,
        attention_scale: float = 9.0,
        dropout: float = 0.4,
        statistics: Statistics = "caption",
    ) -> None:
        super().__init__()
        self.sgr = SimilarityGraphReasoning(
            vocab_size=vocab_size,
            image_dim=image_dim,
            embed_size=embed_size,
            word_dim=word_dim,
            sim_dim=sim_dim,
            num_steps=num_steps,
            num_regions=num_regions,
            attention_scale=attention_scale,
            dropout=dropout,
        )
        self.saf = SimilarityAttentionFiltration(
            vocab_size=vocab_size,
            image_dim=image_dim,
            embed_size=embed_size,
            word_dim=word_dim,
            sim_dim=sim_dim,
            num_regions=num_regions,
            attention_scale=attention_scale,
            dropout=dropout,
            statistics=statistics,
        )

    def encode_images(self, batch: Batch) -> Encoded:
        return side_by_side(self.sgr.encode_images(batch), self.saf.encode_images(batch))

    def encode_texts(self, batch: Batch) -> Encoded:
        return side_by_side(self.sgr.encode_texts(batch), self.saf.encode_texts(batch))

    def kernels_hold(self, batch: Batch) -> bool:
        return self.sgr.kernels_hold(batch) and self.saf.kernels_hold(batch)

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        return self.saf.floats_per_pair(halves(images)[0], halves(texts)[0])

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        images_for_sgr, images_for_saf = halves(images)
        texts_for_sgr, texts_for_saf = halves(texts)
        return logit_of_mean(
            self.sgr.compare(images_for_sgr, texts_for_sgr), self.saf.compare(images_for_saf, texts_for_saf)
        )
