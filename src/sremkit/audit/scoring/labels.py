"""Labelled pairs: the decisions of people recalibrate P(match) and the noise rate.

    logit P'(match) = slope logit P(match) + trend z + offset,   z: the normal score of the pair's rank

The calibration knows mismatches as random negatives only. Where real mismatches are nearer, its probabilities are too
high, and some labelled pairs show by how much. The three coefficients have Gaussian priors around (1, 0, 0) of several
widths, which are averaged by the evidence of the labels: where the calibration was right, few labels change it little.
Slope and trend are not negative, so the order of the pairs stays. The model is one of P(label | score), so labelled
pairs may be chosen by their scores. Posteriors and evidence are Laplace's approximations.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from sremkit.audit.scoring.types import NoiseRate, PairScores

PRIOR_MEAN = np.array([1.0, 0.0, 0.0])  # of slope, trend, offset
PRIOR_STD = np.array([0.5, 1.0, 2.0])
PRIOR_SCALES = (0.1, 0.3, 1.0)  # of these widths
MIN_LABELS = 20  # with fewer, ranks stay ranks
BOUND = 0.005  # P(match) is used between this and 1 - this
NEWTON_STEPS = 50
DRAWS = 400


def apply_labels(scores: PairScores, label: np.ndarray, *, seed: int = 0) -> PairScores:
    """Scores that use labels: recalibrated, and 0 or 1 for the labelled pairs themselves.

    Scores that are ranks become probabilities where at least `MIN_LABELS` pairs, of both kinds, are labelled.

    Args:
        label: (m,) int64: 1 match, 0 mismatch, MISSING unknown.
    """
    known = np.isin(label, (0, 1)) & scores.is_scored
    if not known.any():
        return scores
    rank_only = scores.noise_rate is None
    if rank_only and (known.sum() < MIN_LABELS or len(np.unique(label[known])) < 2):
        match_prob = np.where(known, label, scores.match_prob)
        return replace(scores, match_prob=match_prob)
    scored = np.flatnonzero(scores.is_scored)
    features = label_features(scores.match_prob[scored], rank_only=rank_only)
    is_known = known[scored]
    fits = fit_labels(features[is_known], label[scored][is_known], fixed_slope=rank_only)
    match_prob = scores.match_prob.copy()
    match_prob[scored] = sum(fit.weight * sigmoid(features @ fit.mean) for fit in fits)
    match_prob[known] = label[known]
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(DRAWS, [fit.weight for fit in fits])
    draws = np.concatenate(
        [
            rng.multivariate_normal(fit.mean, fit.covariance, size=count, method="eigh")
            for fit, count in zip(fits, counts, strict=True)
        ]
    )
    draws[:, :2] = draws[:, :2].clip(min=0.0)
    wrong = int((label[known] == 0).sum())
    rates = [(wrong + (1 - sigmoid(features[~is_known] @ draw)).sum()) / len(scored) for draw in draws]
    low, high = np.quantile(rates, [0.025, 0.975])
    estimate = float(1 - match_prob[scored].mean())
    rate = NoiseRate(estimate, float(min(low, estimate)), float(max(high, estimate)))
    return replace(scores, match_prob=match_prob, noise_rate=rate, note="" if rank_only else scores.note)


def label_features(match_prob: np.ndarray, *, rank_only: bool) -> np.ndarray:
    """(m, 3): logit of P(match), 0 where it is only a rank; normal score of the rank; 1."""
    bounded = match_prob.clip(BOUND, 1 - BOUND)
    logit = np.zeros(len(match_prob)) if rank_only else np.log(bounded) - np.log1p(-bounded)
    order = np.argsort(np.argsort(match_prob, kind="stable"), kind="stable")
    normal = NormalDist()
    z = np.array([normal.inv_cdf(float(q)) for q in (order + 0.5) / len(match_prob)])
    return np.stack([logit, z, np.ones(len(match_prob))], axis=1)


class LabelFit(NamedTuple):
    """The posterior of the coefficients for one width of the prior, and its share in the average."""

    weight: float
    mean: np.ndarray  # (3,)
    covariance: np.ndarray  # (3, 3)


def fit_labels(features: np.ndarray, label: np.ndarray, *, fixed_slope: bool = False) -> list[LabelFit]:
    """Fit for every width of the prior; of ranks, which are no probabilities, for the widest alone."""
    scales = PRIOR_SCALES[-1:] if fixed_slope else PRIOR_SCALES
    fits = [_fit(features, label, PRIOR_STD * scale, fixed_slope=fixed_slope) for scale in scales]
    evidence = np.array([log_evidence for _, _, log_evidence in fits])
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    return [LabelFit(float(w), mean, covariance) for w, (mean, covariance, _) in zip(weights, fits, strict=True)]


def _fit(
    features: np.ndarray, label: np.ndarray, prior_std: np.ndarray, *, fixed_slope: bool
) -> tuple[np.ndarray, np.ndarray, float]:
    """Coefficients (3,) at the maximum of the posterior, their covariance (3, 3), and the log evidence.

    Coefficients that would be negative, of slope and trend, are held at 0.
    """
    free, precision = np.array([not fixed_slope, True, True]), 1 / prior_std**2
    while True:
        mean, hessian = _newton(features, label, free, precision)
        negative = (mean < 0) & np.array([True, True, False]) & free
        if not negative.any():
            break
        free &= ~negative
    covariance = np.zeros((3, 3))
    covariance[np.ix_(free, free)] = np.linalg.inv(hessian[np.ix_(free, free)])
    log_prior = 0.5 * (np.log(precision[free]).sum() - (precision * (mean - PRIOR_MEAN) ** 2).sum())
    log_det = np.linalg.slogdet(covariance[np.ix_(free, free)])[1]
    return mean, covariance, float(log_prior - _label_loss(features, label, mean) + 0.5 * log_det)


def _label_loss(features: np.ndarray, label: np.ndarray, coefficients: np.ndarray) -> float:
    """-log P(labels)."""
    return float(np.logaddexp(0, -(2 * label - 1) * (features @ coefficients)).sum())


def _newton(
    features: np.ndarray, label: np.ndarray, free: np.ndarray, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Maximize the posterior over the free coefficients, the others 0; the negative Hessian there.

    The log posterior is strictly concave. Steps are halved until it rises.
    """
    coefficients = np.where(free, PRIOR_MEAN, 0.0)

    def loss(values: np.ndarray) -> float:
        penalty = 0.5 * (precision * (values - PRIOR_MEAN) ** 2)[free].sum()
        return _label_loss(features, label, values) + float(penalty)

    for _ in range(NEWTON_STEPS):
        p = sigmoid(features @ coefficients)
        gradient = features.T @ (label - p) - precision * (coefficients - PRIOR_MEAN)
        hessian = (features * (p * (1 - p))[:, None]).T @ features + np.diag(precision)
        step = np.zeros(3)
        step[free] = np.linalg.solve(hessian[np.ix_(free, free)], gradient[free])
        size = 1.0
        while size > 1e-6 and loss(coefficients + size * step) > loss(coefficients):
            size /= 2
        coefficients = coefficients + size * step
        if np.abs(size * step).max() < 1e-10:
            break
    return coefficients, hessian


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))
