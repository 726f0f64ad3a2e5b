"""VSRN: graph reasoning over regions, a GRU over the result, and a captioning loss.

    R = θ(V) φ(V)ᵀ / r,   V ← V + BN(W R g(V))      four times, then a GRU over the regions in their order

Its last state is the image's vector, the last state of a GRU over the words is the text's, and the logit is
scale · cosine + bias. In training `extra_losses` returns the captioning loss.

Reference: Li et al., "Visual Semantic Reasoning for Image-Text Matching", ICCV 2019.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.models import BACKBONES
from sremkit.models.layers.encoders import LogitScale, all_cosines, check_positive, xavier_linear
from sremkit.models.layers.masking import MaskedBatchNorm, regions_of, words_of
from sremkit.models.matcher import Encoded, Matcher
from sremkit.ops.functional import Dropout, full_precision, l2_normalize, without_autocast
from sremkit.ops.gru import run_gru

_IGNORED = -100  # target of a word that does not count


class RelationLayer(nn.Module):
    """V ← V + BN(W R g(V)), a residual of zero at initialisation, because the norm's weight starts at 0."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.theta = nn.Linear(size, size)
        self.phi = nn.Linear(size, size)
        self.tell = nn.Linear(size, size)  # g; the name is part of saved checkpoints
        self.output = nn.Linear(size, size)
        self.norm = MaskedBatchNorm(size)
        nn.init.zeros_(self.norm.weight)
        nn.init.zeros_(self.norm.bias)

    def forward(self, regions: Tensor, mask: Tensor) -> Tensor:
        """Regions (b, r, d) after one layer; absent ones are and stay zero."""
        absent = ~mask.unsqueeze(-1)
        count = mask.sum(dim=1).clamp_min(1)[:, None, None]
        relation = self.theta(regions) @ self.phi(regions).transpose(1, 2) / count  # (b, r, r)
        messages = relation @ self.tell(regions).masked_fill(absent, 0.0).to(relation.dtype)  # (b, r, d)
        residual = self.norm(self.output(messages), mask.unsqueeze(-1))
        return (regions + residual).masked_fill(absent, 0.0)


class Captioner(nn.Module):
    """Generates the caption from the regions, as a second loss.

    A GRU reads the regions; a second one generates the caption, at each word attending to the states of the first. The
    loss is the negative log-likelihood of the given words, summed over the caption, mean over the batch.

    Args:
        region_dim: width of a region vector.
        max_words: later words of a caption are ignored.
    """

    def __init__(
        self, vocab_size: int, region_dim: int, *, hidden_size: int, word_dim: int, dropout: float, max_words: int
    ) -> None:
        super().__init__()
        self.max_words = max_words
        self.dropout = Dropout(dropout)
        self.project = nn.Linear(region_dim, hidden_size)
        nn.init.xavier_normal_(self.project.weight)
        self.reader = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.embed = nn.Embedding(vocab_size, word_dim)
        self.attend = nn.Linear(2 * hidden_size, hidden_size)
        self.attend_score = nn.Linear(hidden_size, 1, bias=False)
        self.writer = nn.GRUCell(hidden_size + word_dim, hidden_size)
        self.output = nn.Linear(hidden_size, vocab_size)
        nn.init.xavier_normal_(self.output.weight)

    def forward(self, regions: Tensor, region_mask: Tensor, words: Tensor, word_mask: Tensor) -> Tensor:
        """Loss of captions (b, w), from start to end token, from the second word on; regions (b, r, d)."""
        words, word_mask = words[:, : self.max_words], word_mask[:, : self.max_words]
        with without_autocast(regions):
            hidden = self._decode(full_precision(regions), region_mask, words[:, :-1])  # (b, w - 1, h)
            # Absent words are computed and ignored: to leave them out the host would have to wait for the device.
            target = words[:, 1:].masked_fill(~word_mask[:, 1:], _IGNORED)
            scores = self.output(hidden).flatten(0, 1)  # (b · (w - 1), vocab)
            total = F.cross_entropy(scores, target.flatten(), reduction="sum", ignore_index=_IGNORED)
            return total / len(words)

    def _decode(self, regions: Tensor, region_mask: Tensor, given: Tensor) -> Tensor:
        """Hidden states after each given word: (b, w - 1, h)."""
        read, state = run_gru(self.reader, self.dropout(self.project(regions)), region_mask)  # (b, r, h), (b, h)
        h = state.shape[1]
        from_read = F.linear(read, self.attend.weight[:, :h], self.attend.bias)  # (b, r, h)
        given_vectors = self.embed(given)  # (b, w - 1, e)
        states = []
        for word in given_vectors.unbind(dim=1):
            from_state = F.linear(state, self.attend.weight[:, h:]).unsqueeze(1)  # (b, 1, h)
            scores = self.attend_score(torch.tanh(from_read + from_state)).squeeze(-1)  # (b, r)
            weights = scores.masked_fill(~region_mask, torch.finfo(scores.dtype).min).softmax(dim=1)
            context = (weights.unsqueeze(1) @ read).squeeze(1)  # (b, h)
            state = self.writer(self.dropout(torch.cat([word, context], dim=1)), state)
            states.append(state)
        return torch.stack(states, dim=1) if states else read.new_zeros(len(read), 0, h)


@BACKBONES.register("vsrn")
class VisualSemanticReasoning(Matcher):
    """Graph reasoning over regions, a GRU, and a captioning loss (VSRN).

    Args:
        num_layers: layers of graph reasoning.
        unit_projection: L2-normalise the projected features over the regions first (MS-COCO's setting).
        last_norm: batch normalisation of the image's vector (Flickr30K's setting).
        caption_size: hidden width of the captioner.
        caption_weight: weight of the captioning loss; 0 builds no captioner.
        caption_dropout: dropout of the captioner.
        max_caption_words: later words of a caption do not enter the captioning loss.
    """

    supports_cuda_graphs = True
    small_options: ClassVar[dict[str, Any]] = {
        "embed_size": 8,
        "word_dim": 6,
        "num_layers": 2,
        "caption_size": 7,
        "caption_dropout": 0.0,
    }

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
        self.to_logit = LogitScale(scale=scale, neutral=neutral)
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
            return Encoded(local=regions, mask=mask, pooled=l2_normalize(state))
        return Encoded(pooled=l2_normalize(state))

    def related_regions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Regions (b, r, d) after reasoning, present ones first, and their mask (b, r)."""
        images, mask = regions_of(batch)
        order = mask.sort(dim=1, descending=True, stable=True).indices  # the GRU reads from the front
        images = images.take_along_dim(order.unsqueeze(-1), dim=1)
        mask = mask.take_along_dim(order, dim=1)
        regions = self.project(images).masked_fill(~mask.unsqueeze(-1), 0.0)
        # Both normalisations run over the regions of one feature, as in the public code.
        if self.unit_projection:
            regions = l2_normalize(regions, dim=1)
        for layer in self.layers:
            regions = layer(regions, mask)
        return l2_normalize(regions, dim=1), mask

    def encode_texts(self, batch: Batch) -> Encoded:
        indices, mask = words_of(batch)
        _, state = run_gru(self.word_gru, self.embed(indices.int()), mask)
        return Encoded(pooled=l2_normalize(state))

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.to_logit(all_cosines(images.whole(), texts.whole()))

    def extra_losses(self, batch: Batch, images: Encoded | None = None) -> dict[str, Tensor]:
        """The captioning loss, in nats a caption: {"captioning": ...}."""
        if self.captioner is None:
            return {}
        regions, mask = self.related_regions(batch) if images is None or images.local is None else images.parts()
        words, word_mask = words_of(batch)
        return {"captioning": self.caption_weight * self.captioner(regions, mask, words, word_mask)}
