"""The outlines of the shapes: corners about the origin, (p, 2) right and down, none beyond 1."""

from __future__ import annotations

import numpy as np


def _around(radii: list[float], *, turn: float = 0.0) -> np.ndarray:
    """Points at these distances, clockwise from the top; `turn` is in steps between two points."""
    angle = 2 * np.pi * (np.arange(len(radii)) + turn) / len(radii)
    return np.array(radii)[:, None] * np.stack([np.sin(angle), -np.cos(angle)], axis=1)


def _cross(*, arm: float, end: float) -> np.ndarray:
    top = np.array([(-arm, -arm), (-arm, -end), (arm, -end)])
    right, bottom = top @ [[0, 1], [-1, 0]], -top  # quarter turn, half turn
    return np.concatenate([top, right, bottom, -right])


def _heart() -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    across = 16 * np.sin(t) ** 3
    up = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([across, -(up + 2.5)], axis=1) / 16.5


OUTLINES: dict[str, np.ndarray] = {
    "circle": _around([0.95] * 64),
    "square": _around([1.15] * 4, turn=0.5),
    "triangle": np.array([(0.0, -0.95), (0.95, 0.75), (-0.95, 0.75)]),
    "diamond": _around([1.0, 0.7, 1.0, 0.7]),
    "star": _around([1.05, 0.48] * 5) + np.array([0.0, 0.08]),
    "cross": _cross(arm=0.33, end=0.95),
    "heart": _heart(),
}
