"""Hinge losses in plain loops, written from the published formulas."""

from __future__ import annotations

import math

Matrix = list[list[float]]


def counts(valid: list[list[bool]] | None, i: int, j: int) -> bool:
    return valid is None or valid[i][j]


def triplet(s: Matrix, margins: list[float], reduction: str, valid: list[list[bool]] | None = None) -> list[float]:
    """Per pair: the hinges of image k over all texts, and those of text k over all images."""
    losses = []
    for k in range(len(s)):
        images_hinges, texts_hinges = [], []
        for other in range(len(s)):
            own = other == k
            if counts(valid, k, other):  # image k against text `other`
                images_hinges.append(0.0 if own else max(0.0, margins[k] + s[k][other] - s[k][k]))
            if counts(valid, other, k):  # text k against image `other`
                texts_hinges.append(0.0 if own else max(0.0, margins[k] + s[other][k] - s[k][k]))
        if reduction == "hardest":
            losses.append(max(images_hinges) + max(texts_hinges))
        else:
            losses.append(math.fsum(images_hinges) / len(images_hinges) + math.fsum(texts_hinges) / len(texts_hinges))
    return losses


def soft_margin(label: float, margin: float, shape: str, base: float) -> float:
    if shape == "linear":
        return margin * label
    if shape == "sine":
        return margin * (0.5 * math.sin(math.pi * label - math.pi / 2) + 0.5)
    return margin * (base**label - 1) / (base - 1)
