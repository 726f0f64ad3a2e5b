"""Mixtures of two components, fitted by EM: of correct and of mismatched pairs, by any matching statistic.

    Gaussian:  p(x) = w_0 N(x; m_0, s_0) + w_1 N(x; m_1, s_1)
    beta:      p(x) = w_0 Beta(x; a_0, b_0) + w_1 Beta(x; a_1, b_1),  x between 0 and 1

A beta distribution can be skewed, as losses close to 0 are. Its M-step matches moments: with the weighted mean m and
variance v, a = m (m (1 - m) / v - 1), b = a (1 - m) / m.
Reference: Arazo et al., Unsupervised Label Noise Modeling and Loss Correction, ICML 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sremkit.errors import DataError

Mixture = Literal["beta", "normal"]

# A Gaussian narrower than this share of the whole spread has collapsed onto a few points.
MIN_SHARE_OF_SPREAD = 1e-2
# A Gaussian of less weight than this holds no value: all of them belong to one component.
MIN_WEIGHT = 1e-6

EDGE = 1e-4  # values of beta mixtures are clamped this far from 0 and 1, where densities are 0 or infinite
SEEDED_EDGE = 1e-3  # likewise for similarities: a saturated sigmoid carries no more information
MIN_DENSITY = 1e-12  # of a weighted component, so that the responsibilities of a value never vanish


@dataclass(frozen=True)
class TwoGaussians:
    """Weights, means and standard deviations; the second component has the larger mean."""

    weight: Tensor  # (2,)
    mean: Tensor  # (2,)
    deviation: Tensor  # (2,)

    def log_densities(self, values: Tensor) -> Tensor:
        """log of weight times density, for each value and component: (n, 2)."""
        z = (values.double()[:, None] - self.mean) / self.deviation
        return self.weight.log() - self.deviation.log() - 0.5 * math.log(2 * math.pi) - 0.5 * z.square()

    def upper_probability(self, values: Tensor) -> Tensor:
        """Posterior probability of the upper component: (n,), monotone in the value.

        Of two components of different width the wider one wins in both tails. Below the lower mean and above the
        upper one the posterior is made monotone, so that it never falls as the value rises.
        """
        values = values.double()
        order = values.argsort()
        log_densities = self.log_densities(values[order])
        posterior = (log_densities[:, 1] - log_densities[:, 0]).sigmoid()
        below = int((values < self.mean[0]).sum())
        falling = posterior[:below].flip(0).cummin(0).values.flip(0)  # from the lower mean downwards
        upper = torch.empty_like(posterior)
        upper[order] = torch.cat([falling, posterior[below:]]).cummax(0).values
        return upper

    @property
    def separation(self) -> float:
        """Distance of the means in common standard deviations; below about 2 the mixture has one mode."""
        common = self.deviation.square().mean().sqrt()
        return float((self.mean[1] - self.mean[0]) / common)


def fit_two_gaussians(values: Tensor, *, iterations: int = 100, tolerance: float = 1e-7) -> TwoGaussians:
    """Maximum likelihood by EM, from the halves below and above the midpoint of the outer deciles.

    Where all values belong to one component, equal values for instance, both components are equal and the upper one
    has all the weight: the separation is 0, and every value belongs to the upper component.
    """
    values = values.double()
    if len(values) < 4 or not torch.isfinite(values).all():
        raise ValueError(f"a mixture needs at least 4 finite values, got {len(values)}")
    spread = values.std().clamp_min(1e-12)
    low, high = values.quantile(0.1), values.quantile(0.9)
    responsibility = torch.stack([values < (low + high) / 2, values >= (low + high) / 2], dim=1).double()
    before = -math.inf
    for _ in range(iterations):
        mixture = _maximize(values, responsibility, min_deviation=MIN_SHARE_OF_SPREAD * spread)
        log_densities = mixture.log_densities(values)
        log_total = log_densities.logsumexp(dim=1, keepdim=True)
        responsibility = (log_densities - log_total).exp()
        likelihood = float(log_total.mean())
        if abs(likelihood - before) < tolerance:
            break
        before = likelihood
    if mixture.weight.min() < MIN_WEIGHT:
        # The mean of an empty component is that of a sum over nothing.
        full = mixture.weight.argmax()
        return TwoGaussians(
            mixture.weight.sort().values, mixture.mean[full].expand(2), mixture.deviation[full].expand(2)
        )
    order = mixture.mean.argsort()
    return TwoGaussians(mixture.weight[order], mixture.mean[order], mixture.deviation[order])


def lower_gaussian_probability(
    values: Tensor, *, iterations: int = 10, tolerance: float = 1e-2, added_variance: float = 5e-4
) -> Tensor:
    """Posterior probability of the lower component: (n,) float64, fitted as NCR published it.

    EM from the two-means clustering, in few iterations; `added_variance` keeps a component from collapsing onto equal
    values.
    """
    values = values.double()
    lower = _lower_cluster(values)
    responsibility = torch.stack([lower, ~lower], dim=1).double()  # (n, 2)
    mixture = _maximize(values, responsibility, min_mass=1e-12, added_variance=added_variance)
    before = float("-inf")
    for _ in range(iterations):
        log_densities = mixture.log_densities(values)
        likelihood = float(log_densities.logsumexp(dim=1).mean())
        mixture = _maximize(values, log_densities.softmax(dim=1), min_mass=1e-12, added_variance=added_variance)
        if abs(likelihood - before) < tolerance:
            break
        before = likelihood
    return mixture.log_densities(values).softmax(dim=1)[:, int(mixture.mean.argmin())]


def _lower_cluster(values: Tensor) -> Tensor:
    """(n,) bool: the lower cluster of two-means, solved exactly."""
    ordered = values.sort().values
    n, sums = len(values), ordered.cumsum(0)
    count = torch.arange(1, n, device=values.device)
    between = sums[:-1].square() / count + (sums[-1] - sums[:-1]).square() / (n - count)
    return values <= ordered[int(between.argmax())]


def _maximize(
    values: Tensor,
    responsibility: Tensor,
    *,
    min_deviation: Tensor | float = 0.0,
    min_mass: float = 1e-9,
    added_variance: float = 0.0,
) -> TwoGaussians:
    mass = responsibility.sum(dim=0).clamp_min(min_mass)  # (2,)
    mean = (responsibility * values[:, None]).sum(dim=0) / mass
    variance = (responsibility * (values[:, None] - mean).square()).sum(dim=0) / mass
    deviation = (variance + added_variance).sqrt().clamp_min(min_deviation)
    return TwoGaussians(mass / mass.sum(), mean, deviation)


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
        """Posterior probability of each component: (n, 2)."""
        x = _clamped(values, EDGE)[:, None]
        log_norm = torch.lgamma(self.alpha + self.beta) - torch.lgamma(self.alpha) - torch.lgamma(self.beta)
        log_density = log_norm + (self.alpha - 1) * x.log() + (self.beta - 1) * (1 - x).log()
        weighted = (self.weight.log() + log_density).exp().clamp_min(MIN_DENSITY)
        return weighted / weighted.sum(dim=1, keepdim=True)

    def lower_probability(self, values: Tensor) -> Tensor:
        """Posterior probability of the lower component: (n,), never rising with the value.

        A wide component wins in both tails, and one that is steep at 0 may rise again at 1. The posterior is made
        monotone, so that neither makes the smallest losses noisy or the largest ones clean.
        """
        at_mean = self.responsibility(self.mean[:1])[:, 0]
        probability = self.responsibility(values)[:, 0]
        probability = torch.where(values < self.mean[0], probability.maximum(at_mean), probability)
        order = values.argsort()
        falling = torch.empty_like(probability)
        falling[order] = probability[order].cummin(0).values
        return falling


def fit_two_betas(values: Tensor, *, iterations: int = 10) -> TwoBetas:
    """EM from Beta(1, 2) and Beta(2, 1)."""
    x = _clamped(values, EDGE)
    start = ([0.5, 0.5], [1.0, 2.0], [2.0, 1.0])
    mixture = TwoBetas(*(x.new_tensor(numbers) for numbers in start))
    for _ in range(iterations):
        mixture = match_moments(x, mixture.responsibility(x))
    order = mixture.mean.argsort()
    return TwoBetas(mixture.weight[order], mixture.alpha[order], mixture.beta[order])


def lower_probability(values: Tensor, mixture: Mixture) -> Tensor:
    """Posterior probability of the lower component: (n,), of values in [0, 1]."""
    if mixture == "normal":
        return lower_gaussian_probability(values)
    return fit_two_betas(values).lower_probability(values)


def seeded_match_probability(
    similarity: Tensor, *, matched: Tensor, mismatched: Tensor, iterations: int = 10
) -> Tensor:
    """Posterior probability that each similarity (n,) in [0, 1] is that of a correct pair: (n,) float64.

    EM is initialised with the similarities of pairs known to be matched and known to be mismatched. Components are kept
    unimodal: that of the mismatched pairs does not rise towards 1, nor that of the matched pairs towards 0. Otherwise,
    where matched pairs have saturated at 1, the wider component of the mismatched pairs takes both ends.

    Args:
        matched: similarities of some correct pairs.
        mismatched: similarities of some wrong pairs.
        iterations: steps of EM.
    """
    for name, known in (("matched", matched), ("mismatched", mismatched)):
        if len(known) < 2:
            raise DataError(f"at least two {name} pairs are needed to fit their similarities, got {len(known)}")
    examples = _clamped(torch.cat([mismatched, matched]), SEEDED_EDGE)
    is_matched = torch.arange(len(examples), device=examples.device) >= len(mismatched)
    mixture = _unimodal(examples, torch.stack([~is_matched, is_matched], dim=1).double())
    # The numbers of examples are not the shares of correct and wrong pairs.
    mixture = TwoBetas(torch.full_like(mixture.weight, 0.5), mixture.alpha, mixture.beta)
    x = _clamped(similarity, SEEDED_EDGE)
    for _ in range(iterations):
        mixture = _unimodal(x, mixture.responsibility(x))
    return mixture.responsibility(x)[:, 1]


def match_moments(x: Tensor, responsibility: Tensor) -> TwoBetas:
    """The two distributions with the weighted means and variances of x (n,), by responsibilities (n, 2)."""
    mass = responsibility.sum(dim=0)  # (2,), positive because of MIN_DENSITY
    mean = (responsibility * x[:, None]).sum(dim=0) / mass
    variance = (responsibility * (x[:, None] - mean).square()).sum(dim=0) / mass
    # Equal values have no variance; then the component becomes narrow instead of infinitely narrow.
    alpha = mean * (mean * (1 - mean) / variance.clamp_min(EDGE**2) - 1)
    return TwoBetas(mass / mass.sum(), alpha, alpha * (1 - mean) / mean)


def _unimodal(x: Tensor, responsibility: Tensor) -> TwoBetas:
    """As `match_moments`; a component that would rise towards the wrong end becomes narrower, with the same mean."""
    mixture = match_moments(x, responsibility)
    # A beta density rises towards 1 where beta < 1, and towards 0 where alpha < 1.
    factor = torch.stack([mixture.beta[0], mixture.alpha[1]]).clamp_max(1.0)
    return TwoBetas(mixture.weight, mixture.alpha / factor, mixture.beta / factor)


def _clamped(values: Tensor, edge: float) -> Tensor:
    return values.double().clamp(edge, 1 - edge)


def rescaled(losses: Tensor) -> Tensor:
    """Losses (n,) moved and scaled to [0, 1], in float64; equal losses all become 0."""
    losses = losses.double()
    low, high = losses.min(), losses.max()
    return (losses - low) / (high - low).clamp_min(torch.finfo(torch.float64).tiny)


def split_clean(probability: Tensor, *, threshold: float = 0.5) -> Tensor:
    """(n,) bool, the clean pairs; where all of them would be, the hundredth of least probability is noisy."""
    clean = probability > threshold
    if bool(clean.all()):
        clean = torch.ones_like(clean)
        clean[probability.argsort(stable=True)[: len(clean) // 100 + 1]] = False
    return clean
