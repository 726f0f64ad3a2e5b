"""BiCro: labels by how consistently a pair lies to anchor pairs in both modalities.

Similar images should have similar texts. With the strongest clean pairs of a batch as anchors,

    a = the anchor whose image is nearest to image i:   r_I = ratio of cos(image i, image a) and cos(text i, text a)
    a = the anchor whose text is nearest to text i:     r_T = likewise;   a ratio is the smaller over the larger

    noisy: y_i = (r_I + r_T) / 2     clean: y_i = 1/2 + (r_I + r_T) / 4     anchor: y_i = 1     y_i <= 1/2 becomes 0

Split, anchors and labels all come from the network that is not trained on them; the split is by a beta mixture.
Reference: Yang et al., BiCro: Noisy Correspondence Rectification for Multi-modality Data, CVPR 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sremkit.methods.base import METHODS
from sremkit.methods.common.batch_scores import pooled_vectors
from sremkit.methods.common.co_teaching import CoTeaching, PeerSplit, Prediction, Strongest, best_tenth, match_strength
from sremkit.methods.common.mixtures import Mixture, lower_probability
from sremkit.objectives.logits import product


@METHODS.register("bicro")
@dataclass(kw_only=True, eq=False)
class BiCro(CoTeaching):
    """BiCro: two networks rectify pairs by bidirectional consistency with anchor pairs.

    Args:
        warmup_keep: share of each warm-up batch that is used, the pairs of smallest loss.
        min_label: labels up to it become 0.
        mixture: over the losses: "beta" as published, or "normal" as in NCR.
    """

    warmup_keep: float = 0.3
    min_label: float = 0.5
    mixture: Mixture = "beta"

    def warmup_hinges(self, scores: Tensor, valid: Tensor) -> Tensor:
        hinges = super().warmup_hinges(scores, valid)
        count = max(1, int(self.warmup_keep * len(hinges)))
        smallest = hinges.detach().argsort(stable=True)[:count]
        return hinges * torch.zeros_like(hinges).scatter(0, smallest, 1.0)

    def clean_posterior(self, losses: Tensor) -> Tensor:
        return lower_probability(losses, self.mixture)

    def labels(self, predictions: list[Prediction], network: int, split: PeerSplit) -> Tensor:
        peer = predictions[1 - network]
        strength = match_strength(peer.scores, margin=self.margin, valid=split.valid)
        anchors = best_tenth(strength, split.clean)
        consistency = bidirectional_consistency(pooled_vectors(peer.images), pooled_vectors(peer.texts), anchors).to(
            strength
        )
        label = torch.where(split.clean, (1 + consistency) / 2, consistency)
        is_anchor = torch.zeros_like(split.clean).scatter(0, anchors.pair, anchors.present)
        label = label.masked_fill(is_anchor, 1.0)
        return torch.where(label <= self.min_label, 0.0, label)


def bidirectional_consistency(images: Tensor, texts: Tensor, anchors: Strongest) -> Tensor:
    """(r_I + r_T) / 2 of each pair, (b,) in [0, 1]; 0 where there is no anchor.

    Args:
        images: (b, d) unit vectors.
        texts: (b, d) unit vectors.
        anchors: in t slots.
    """
    image_cosines = product(images, images[anchors.pair].T)  # (b, t)
    text_cosines = product(texts, texts[anchors.pair].T)
    ratios = ratio(image_cosines, text_cosines).masked_fill(~anchors.present, 0.0)
    by_image, by_text = (
        ratios.gather(1, cosines.masked_fill(~anchors.present, -torch.inf).argmax(dim=1, keepdim=True))
        for cosines in (image_cosines, text_cosines)
    )
    return (by_image + by_text).squeeze(1) / 2


def ratio(x: Tensor, y: Tensor) -> Tensor:
    """min(x / y, y / x), in [0, 1]; 0 where one of them is 0 or their signs differ."""
    small, large = torch.minimum(x.abs(), y.abs()), torch.maximum(x.abs(), y.abs())
    return torch.where(x * y > 0, small / large.clamp_min(torch.finfo(x.dtype).tiny), 0.0)
