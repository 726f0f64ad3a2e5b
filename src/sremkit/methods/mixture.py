"""Two populations in one list of numbers: a mixture of two normal distributions, fitted by EM.

Right and wrong pairs give two overlapping heaps of any matching statistic; the fitted mixture says how
likely each pair belongs to the upper one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# A component narrower than this share of the whole spread has collapsed onto a few points.
SMALLEST_SHARE_OF_SPREAD = 1e-2
# A component of less weight than this holds no value: all of them are one heap.
EMPTY = 1e-6


@dataclass(frozen=True)
class TwoNormals:
    """Weights, means and standard deviations; the second component has the larger mean."""

    weight: Tensor  # (2,)
    mean: Tensor  # (2,)
    deviation: Tensor  # (2,)

    def log_densities(self, values: Tensor) -> Tensor:
        """log of weight times density, for each value and component: (n, 2)."""
        z = (values.double()[:, None] - self.mean) / self.deviation
        return self.weight.log() - self.deviation.log() - 0.5 * math.log(2 * math.pi) - 0.5 * z.square()

    def upper_probability(self, values: Tensor) -> Tensor:
        """How likely each value comes from the upper component: (n,).

        Of two heaps of different width the wider one wins in both tails. A value below the lower mean is not believed
        for that, and one above the upper mean not doubted: the probability never falls as the value rises.
        """
        values = values.double()
        order = values.argsort()
        log_densities = self.log_densities(values[order])
        likely = (log_densities[:, 1] - log_densities[:, 0]).sigmoid()
        below = int((values < self.mean[0]).sum())
        falling = likely[:below].flip(0).cummin(0).values.flip(0)  # from the lower mean downwards
        upper = torch.empty_like(likely)
        upper[order] = torch.cat([falling, likely[below:]]).cummax(0).values
        return upper

    @property
    def separation(self) -> float:
        """Distance of the means in common standard deviations; below about 2 the heaps are one."""
        common = self.deviation.square().mean().sqrt()
        return float((self.mean[1] - self.mean[0]) / common)


def fit_two_normals(values: Tensor, *, iterations: int = 100, tolerance: float = 1e-7) -> TwoNormals:
    """Maximum likelihood by EM from the halves below and above the midpoint of the outer quartiles.

    Where all values are one heap, equal ones for instance, both components lie on it and all weight is the upper one's:
    the separation is 0, and every value belongs to the upper component.
    """
    values = values.double()
    if len(values) < 4 or not torch.isfinite(values).all():
        raise ValueError(f"a mixture needs at least 4 finite values, got {len(values)}")
    spread = values.std().clamp_min(1e-12)
    low, high = values.quantile(0.1), values.quantile(0.9)
    responsibility = torch.stack([values < (low + high) / 2, values >= (low + high) / 2], dim=1).double()
    before = -math.inf
    for _ in range(iterations):
        mixture = _maximize(values, responsibility, floor=SMALLEST_SHARE_OF_SPREAD * spread)
        log_densities = mixture.log_densities(values)
        log_total = log_densities.logsumexp(dim=1, keepdim=True)
        responsibility = (log_densities - log_total).exp()
        likelihood = float(log_total.mean())
        if abs(likelihood - before) < tolerance:
            break
        before = likelihood
    if mixture.weight.min() < EMPTY:
        # Nothing says where the empty component lies; its mean is whatever a sum over nothing gave.
        full = mixture.weight.argmax()
        return TwoNormals(
            mixture.weight.sort().values, mixture.mean[full].expand(2), mixture.deviation[full].expand(2)
        )
    order = mixture.mean.argsort()
    return TwoNormals(mixture.weight[order], mixture.mean[order], mixture.deviation[order])


def _maximize(values: Tensor, responsibility: Tensor, *, floor: Tensor) -> TwoNormals:
    mass = responsibility.sum(dim=0).clamp_min(1e-9)  # (2,)
    mean = (responsibility * values[:, None]).sum(dim=0) / mass
    variance = (responsibility * (values[:, None] - mean).square()).sum(dim=0) / mass
    return TwoNormals(mass / mass.sum(), mean, variance.sqrt().clamp_min(floor))
