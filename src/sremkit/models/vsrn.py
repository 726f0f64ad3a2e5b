"""VSRN: regions reason over a graph of relations, a GRU sums them up, and a captioner checks the result.

    R = θ(V) φ(V)ᵀ / r,   V ← V + BN(W R g(V))      four times, then a GRU over the regions in their order

Its last state is the image's vector, the last state of a GRU over the words is the text's, and the logit is
scale · cosine + bias. In training `extra_losses` gives the captioning loss.

Reference: Li et al., "Visual Semantic Reasoning for Image-Text Matching", ICCV 2019.
"""

from __future__ import annotations

from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.models import BACKBONES
from sremkit.models.captioning import Captioner
from sremkit.models.encoders import check_positive, xavier_linear
from sremkit.models.gru import run_gru
from sremkit.models.masking import MaskedBatchNorm, regions_of, words_of
from sremkit.models.matcher import Encoded, Matcher
from sremkit.models.similarity import LearnedLogit, all_cosines, unit


class RelationLayer(nn.Module):
    """Each region adds what all regions tell it, by their affinity; at first nothing, as BN starts at 0."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.theta = nn.Linear(size, size)
        self.phi = nn.Linear(size, size)
        self.tell = nn.Linear(size, size)
        self.output = nn.Linear(size, size)
        self.norm = MaskedBatchNorm(size)
        nn.init.zeros_(self.norm.weight)
        nn.init.zeros_(self.norm.bias)

    def forward(self, regions: Tensor, mask: Tensor) -> Tensor:
        """Regions (b, r, d) after one round; absent ones are and stay zero."""
        absent = ~mask.unsqueeze(-1)
        count = mask.sum(dim=1).clamp_min(1)[:, None, None]
        relation = self.theta(regions) @ self.phi(regions).transpose(1, 2) / count  # (b, r, r)
        told = relation @ self.tell(regions).masked_fill(absent, 0.0).to(relation.dtype)  # (b, r, d)
        change = self.norm(self.output(told), mask.unsqueeze(-1))
        return (regions + change).masked_fill(absent, 0.0)


@BACKBONES.register("vsrn")
class VisualSemanticReasoning(Matcher):
    """Graph reasoning over regions, a GRU, and a captioning loss (VSRN).

    Args:
        num_layers: rounds of reasoning.
        unit_projection: normalise the projected features over the regions first (MS-COCO's setting).
        last_norm: batch normalisation of the image's vector (Flickr30K's setting).
        caption_size: hidden width of the captioner.
        caption_weight: weight of the captioning loss; 0 builds no captioner.
        max_caption_words: later words of a caption do not enter the captioning loss.
        scale: starting slope from cosine to logit; `neutral` is the cosine whose logit starts at 0.
    """

    recordable = True

    def __init__(
        self,
        *,
        vocab_size: int,
        image_dim: int = 2048,
        embed_size: int = 2048,
        word_dim: int = 300,
        num_layers: int = 4,
        unit_projection: bool = False,
        last_norm: bool = True,
        caption_size: int = 512,
        caption_weight: float = 1.0,
        caption_dropout: float = 0.2,
        max_caption_words: int = 60,
        scale: float = 10.0,
        neutral: float = 0.5,
    ) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size, image_dim=image_dim, embed_size=embed_size, word_dim=word_dim)
        self.unit_projection = unit_projection
        self.caption_weight = caption_weight
        self.project = xavier_linear(image_dim, embed_size)
        self.layers = nn.ModuleList(RelationLayer(embed_size) for _ in range(num_layers))
        self.region_gru = nn.GRU(embed_size, embed_size, batch_first=True)
        self.last_norm = MaskedBatchNorm(embed_size) if last_norm else None
        self.embed = nn.Embedding(vocab_size, word_dim)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.word_gru = nn.GRU(word_dim, embed_size, batch_first=True)
        self.to_logit = LearnedLogit(scale=scale, neutral=neutral)
        self.captioner = None
        if caption_weight > 0:
            self.captioner = Captioner(
                vocab_size,
                embed_size,
                hidden_size=caption_size,
                word_dim=word_dim,
                dropout=caption_dropout,
                max_words=max_caption_words,
            )

    def encode_images(self, batch: Batch) -> Encoded:
        """The image's vector and, in training, the regions that the captioner reads."""
        regions, mask = self.related_regions(batch)
        _, state = run_gru(self.region_gru, regions, mask)
        if self.last_norm is not None:
            state = self.last_norm(state)
        if self.training and self.captioner is not None:
            return Encoded(local=regions, mask=mask, pooled=unit(state))
        return Encoded(pooled=unit(state))

    def related_regions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Regions (b, r, d) after reasoning, present ones first, and their mask (b, r)."""
        images, mask = regions_of(batch)
        order = mask.sort(dim=1, descending=True, stable=True).indices  # a GRU reads from the front
        images = images.take_along_dim(order.unsqueeze(-1), dim=1)
        mask = mask.take_along_dim(order, dim=1)
        regions = self.project(images).masked_fill(~mask.unsqueeze(-1), 0.0)
        # Both normalisations run over the regions of one feature, as in the public code.
        if self.unit_projection:
            regions = unit(regions, dim=1)
        for layer in self.layers:
            regions = layer(regions, mask)
        return unit(regions, dim=1), mask

    def encode_texts(self, batch: Batch) -> Encoded:
        numbers, mask = words_of(batch)
        _, state = run_gru(self.word_gru, self.embed(numbers.int()), mask)
        return Encoded(pooled=unit(state))

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.to_logit(all_cosines(images.whole(), texts.whole()))

    def extra_losses(self, batch: Batch, images: Encoded | None = None) -> dict[str, Tensor]:
        """The captioning loss, in nats a caption: {"captioning": ...}."""
        if self.captioner is None:
            return {}
        if images is None or images.local is None or images.mask is None:
            regions, mask = self.related_regions(batch)
        else:
            regions, mask = images.local, images.mask
        words, word_mask = words_of(batch)
        return {"captioning": self.caption_weight * self.captioner(regions, mask, words, word_mask)}
