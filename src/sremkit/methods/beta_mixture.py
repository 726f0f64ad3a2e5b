"""Two populations of numbers between 0 and 1: a mixture of two beta distributions, fitted by EM.

    p(x) = w_0 Beta(x; a_0, b_0) + w_1 Beta(x; a_1, b_1)

The M-step matches moments: with the weighted mean m and variance v, a = m (m (1 - m) / v - 1), b = a (1 - m) / m.
A beta distribution can lean, which losses squeezed against 0 do.
Reference: Arazo et al., Unsupervised Label Noise Modeling and Loss Correction, ICML 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EDGE = 1e-4  # values are kept this far from 0 and 1, where densities are 0 or infinite
FLOOR = 1e-12  # of a weighted density, so that no value belongs to nobody


@dataclass(frozen=True)
class TwoBetas:
    """Weights and parameters; the first component has the smaller mean."""

    weight: Tensor  # (2,)
    alpha: Tensor  # (2,)
    beta: Tensor  # (2,)

    @property
    def mean(self) -> Tensor:
        return self.alpha / (self.alpha + self.beta)

    def responsibility(self, values: Tensor) -> Tensor:
        """How likely each value comes from each component: (n, 2)."""
        x = _inside(values)[:, None]
        log_norm = torch.lgamma(self.alpha + self.beta) - torch.lgamma(self.alpha) - torch.lgamma(self.beta)
        log_density = log_norm + (self.alpha - 1) * x.log() + (self.beta - 1) * (1 - x).log()
        weighted = (self.weight.log() + log_density).exp().clamp_min(FLOOR)
        return weighted / weighted.sum(dim=1, keepdim=True)

    def lower_probability(self, values: Tensor) -> Tensor:
        """How likely each value comes from the lower component: (n,), never rising with the value.

        A wide component wins in both tails, and one that is steep at 0 may rise again at 1. Neither makes the
        smallest losses suspicious or the largest ones trustworthy.
        """
        at_mean = self.responsibility(self.mean[:1])[:, 0]
        probability = self.responsibility(values)[:, 0]
        probability = torch.where(values < self.mean[0], probability.maximum(at_mean), probability)
        order = values.argsort()
        falling = torch.empty_like(probability)
        falling[order] = probability[order].cummin(0).values
        return falling


def fit_two_betas(values: Tensor, *, iterations: int = 10) -> TwoBetas:
    """EM from two mirrored slopes, Beta(1, 2) and Beta(2, 1)."""
    x = _inside(values)
    start = ([0.5, 0.5], [1.0, 2.0], [2.0, 1.0])
    mixture = TwoBetas(*(x.new_tensor(numbers) for numbers in start))
    for _ in range(iterations):
        mixture = match_moments(x, mixture.responsibility(x))
    order = mixture.mean.argsort()
    return TwoBetas(mixture.weight[order], mixture.alpha[order], mixture.beta[order])


def match_moments(x: Tensor, responsibility: Tensor) -> TwoBetas:
    """The two distributions with the means and variances of x (n,), of which (n, 2) belongs to each."""
    mass = responsibility.sum(dim=0)  # (2,), above 0 by the floor
    mean = (responsibility * x[:, None]).sum(dim=0) / mass
    variance = (responsibility * (x[:, None] - mean).square()).sum(dim=0) / mass
    # Equal values have no variance; then the component becomes narrow instead of infinitely narrow.
    alpha = mean * (mean * (1 - mean) / variance.clamp_min(EDGE**2) - 1)
    return TwoBetas(mass / mass.sum(), alpha, alpha * (1 - mean) / mean)


def _inside(values: Tensor) -> Tensor:
    return values.double().clamp(EDGE, 1 - EDGE)
