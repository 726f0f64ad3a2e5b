"""NCR: two networks divide the pairs by a mixture of normals, and doubtful pairs get smaller margins.

    P_i = [a - l_i / 2] in [0, a], l_i the mean hinges;     yhat_i = [P_i / mean of the strongest tenth's P] in [0, 1]
    clean: y_i = p_i + (1 - p_i) yhat_i of the network that learns;    noisy: y_i = mean of both networks' yhat_i

p_i is the other network's probability that the pair is clean.
Reference: Huang et al., Learning with Noisy Correspondence for Cross-modal Matching, NeurIPS 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sremkit.methods import METHODS
from sremkit.methods.co_teaching import CoTeaching, Side, View, best_tenth, match_strength
from sremkit.methods.division import lower_normal
from sremkit.models.masking import masked_mean


@METHODS.register("ncr")
class NCR(CoTeaching):
    """NCR: two networks divide the pairs for each other and rank doubtful ones with smaller margins.

    Args:
        similarity: "sigmoid" as published for SGR-like models, or "logit" for scaled cosines.
        margin: of a pair that is fully believed, in units of the similarity.
        margin_shape: how the margin grows with the label: exponential, linear or sine.
        margin_base: of the exponential shape.
        negatives: after the warm-up a pair is ranked against its "hardest" negative as published, or the "mean".
        noisy_after: epochs after the warm-up in which noisy pairs are left alone; published: half of them.
        mask_repeated_images: two captions of one image in a batch are nobody's negatives.
    """

    def clean_probability(self, losses: Tensor) -> Tensor:
        return lower_normal(losses)

    def labels(self, views: list[View], network: int, side: Side) -> Tensor:
        predicted = torch.stack([predicted_labels(view.scores, side, margin=self.margin) for view in views])
        believed = side.probability + (1 - side.probability) * predicted[network]
        return torch.where(side.clean, believed, predicted.mean(dim=0))


def predicted_labels(scores: Tensor, side: Side, *, margin: float) -> Tensor:
    """yhat (b,): a pair's strength in proportion to the strongest of its side of the division."""
    strength = match_strength(scores, margin=margin, valid=side.valid)
    best = best_tenth(strength, torch.stack([~side.clean, side.clean]))  # (2, t)
    noisy_best, clean_best = masked_mean(strength[best.pair], best.present, dim=1)
    # Where even the strongest have no strength, nobody is believed.
    strongest = torch.where(side.clean, clean_best, noisy_best).clamp_min(torch.finfo(strength.dtype).tiny)
    return (strength / strongest).clamp(0, 1)
