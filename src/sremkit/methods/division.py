"""Dividing all pairs into clean and noisy by their losses, as NCR and its successors do each epoch.

Small losses are learnt first, so clean pairs make the lower of two heaps. The losses are stretched to [0, 1], a
mixture of two distributions is fitted, and a pair is clean where the lower component is the likelier one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sremkit.methods.mixture import TwoNormals


def stretched(losses: Tensor) -> Tensor:
    """Losses (n,) moved and scaled to [0, 1], in float64; equal losses all become 0."""
    losses = losses.double()
    low, high = losses.min(), losses.max()
    return (losses - low) / (high - low).clamp_min(torch.finfo(torch.float64).tiny)


def select(probability: Tensor, *, threshold: float = 0.5) -> Tensor:
    """(n,) bool, the clean pairs; where all of them would be, the least probable hundredth is noisy all the same."""
    clean = probability > threshold
    if bool(clean.all()):
        clean = torch.ones_like(clean)
        clean[probability.argsort(stable=True)[: len(clean) // 100 + 1]] = False
    return clean


def lower_normal(
    values: Tensor, *, iterations: int = 10, tolerance: float = 1e-2, added_variance: float = 5e-4
) -> Tensor:
    """How likely each value (n,) belongs to the lower of two normal distributions: (n,) float64.

    EM from the best division into two heaps, in the few steps that NCR published; `added_variance` keeps a
    component from collapsing onto equal values.
    """
    values = values.double()
    lower = _lower_heap(values)
    responsibility = torch.stack([lower, ~lower], dim=1).double()  # (n, 2)
    mixture = _maximize(values, responsibility, added_variance)
    before = float("-inf")
    for _ in range(iterations):
        log_densities = mixture.log_densities(values)
        likelihood = float(log_densities.logsumexp(dim=1).mean())
        mixture = _maximize(values, log_densities.softmax(dim=1), added_variance)
        if abs(likelihood - before) < tolerance:
            break
        before = likelihood
    return mixture.log_densities(values).softmax(dim=1)[:, int(mixture.mean.argmin())]


def _lower_heap(values: Tensor) -> Tensor:
    """(n,) bool: the lower part of the division into two with the least squares (two-means, solved exactly)."""
    ordered = values.sort().values
    n, sums = len(values), ordered.cumsum(0)
    count = torch.arange(1, n, device=values.device)
    between = sums[:-1].square() / count + (sums[-1] - sums[:-1]).square() / (n - count)
    return values <= ordered[int(between.argmax())]


def _maximize(values: Tensor, responsibility: Tensor, added_variance: float) -> TwoNormals:
    mass = responsibility.sum(dim=0).clamp_min(1e-12)  # (2,)
    mean = (responsibility * values[:, None]).sum(dim=0) / mass
    variance = (responsibility * (values[:, None] - mean).square()).sum(dim=0) / mass
    return TwoNormals(mass / mass.sum(), mean, (variance + added_variance).sqrt())
