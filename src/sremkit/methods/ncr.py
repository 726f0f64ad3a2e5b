"""NCR: two networks split the pairs by a Gaussian mixture, and doubtful pairs get smaller margins.

    P_i = [a - l_i / 2] in [0, a], l_i the mean hinges;     yhat_i = [P_i / mean of the strongest tenth's P] in [0, 1]
    clean: y_i = p_i + (1 - p_i) yhat_i of the trained network;    noisy: y_i = mean of both networks' yhat_i

p_i is the other network's probability that the pair is clean.
Reference: Huang et al., Learning with Noisy Correspondence for Cross-modal Matching, NeurIPS 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sremkit.methods.base import METHODS
from sremkit.methods.common.co_teaching import CoTeaching, PeerSplit, Prediction, best_tenth, match_strength
from sremkit.methods.common.mixtures import lower_gaussian_probability
from sremkit.models.layers.masking import masked_mean


@METHODS.register("ncr")
class NCR(CoTeaching):
    """NCR: two networks split the pairs for each other and rank doubtful ones with smaller margins."""

    def clean_posterior(self, losses: Tensor) -> Tensor:
        return lower_gaussian_probability(losses)

    def labels(self, predictions: list[Prediction], network: int, split: PeerSplit) -> Tensor:
        predicted = torch.stack([predicted_labels(p.scores, split, margin=self.margin) for p in predictions])
        clean_label = split.probability + (1 - split.probability) * predicted[network]
        return torch.where(split.clean, clean_label, predicted.mean(dim=0))


def predicted_labels(scores: Tensor, split: PeerSplit, *, margin: float) -> Tensor:
    """yhat (b,): a pair's strength relative to the strongest pairs of its part of the split."""
    strength = match_strength(scores, margin=margin, valid=split.valid)
    best = best_tenth(strength, torch.stack([~split.clean, split.clean]))  # (2, t)
    noisy_best, clean_best = masked_mean(strength[best.pair], best.present, dim=1)
    # Where even the strongest have no strength, every label is 0.
    strongest = torch.where(split.clean, clean_best, noisy_best).clamp_min(torch.finfo(strength.dtype).tiny)
    return (strength / strongest).clamp(0, 1)
