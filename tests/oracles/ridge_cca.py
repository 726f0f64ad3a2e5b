"""Canonical correlations with a ridge, in float64: every pair written out, whitened by symmetric square roots."""

from __future__ import annotations

import numpy as np


def cosines(
    images: np.ndarray,
    texts: np.ndarray,
    image_of_text: np.ndarray,
    clean_prob: np.ndarray,
    ridge: float,
    k: int,
) -> np.ndarray:
    """How well every image (row) fits every text (column) in the first k canonical directions."""
    x, y = images[image_of_text], texts  # one row a pair
    weight = clean_prob / clean_prob.sum()
    x_mean, y_mean = weight @ x, weight @ y
    xx = sum(s * np.outer(a, a) for s, a in zip(weight, x - x_mean, strict=True))
    yy = sum(s * np.outer(b, b) for s, b in zip(weight, y - y_mean, strict=True))
    xy = sum(s * np.outer(a, b) for s, a, b in zip(weight, x - x_mean, y - y_mean, strict=True))
    x_white, y_white = _inverse_root(xx, ridge), _inverse_root(yy, ridge)
    u, correlation, v = np.linalg.svd(x_white @ xy @ y_white)
    p = (images - x_mean) @ x_white @ u[:, :k] * correlation[:k]
    q = (texts - y_mean) @ y_white @ v[:k].T * correlation[:k]
    lengths = np.linalg.norm(p, axis=1)[:, None] * np.linalg.norm(q, axis=1)[None, :]
    return p @ q.T / lengths


def _inverse_root(covariance: np.ndarray, ridge: float) -> np.ndarray:
    regularized = covariance + ridge * np.mean(np.diag(covariance)) * np.eye(len(covariance))
    values, vectors = np.linalg.eigh(regularized)
    return vectors @ np.diag(values**-0.5) @ vectors.T
