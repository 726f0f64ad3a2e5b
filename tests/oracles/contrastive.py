"""InfoNCE, generalized cross-entropy and RCL, written from their papers with loops."""

from __future__ import annotations

import math

from oracles.filtration import transpose

Matrix = list[list[float]]


def softmax_row(row: list[float], temperature: float) -> list[float]:
    top = max(row)
    exponentials = [math.exp((value - top) / temperature) for value in row]
    return [e / sum(exponentials) for e in exponentials]


def phi(form: str, x: float, q: float) -> float:
    if form == "log":
        return -math.log(1 - x)
    if form == "tan":
        return math.tan(x)
    if form == "abs":
        return x
    if form == "exp":
        return math.exp(-(1 - x))
    return (1 - (1 - x) ** q) / q  # gce


def rcl(scores: Matrix, temperature: float, form: str, q: float, images: list[int] | None = None) -> float:
    """With the images' numbers, other pairs of a pair's own image are left out of its row."""
    images = list(range(len(scores))) if images is None else images
    total = 0.0
    for i, row in enumerate(scores):
        others = [j for j in range(len(row)) if images[j] != images[i]]
        probabilities = softmax_row([row[i]] + [row[j] for j in others], temperature)
        total += sum(phi(form, p, q) for p in probabilities[1:])
    return total / len(scores)


def rcl_both(
    scores: Matrix, temperature: float, form: str, q: float, images: list[int] | None = None
) -> tuple[float, float, float]:
    """What is trained with, the sum of both directions; then from images to texts, and from texts to images."""
    rows, columns = (rcl(s, temperature, form, q, images) for s in (scores, transpose(scores)))
    return rows + columns, rows, columns


def infonce(logits: Matrix) -> float:
    return -sum(math.log(softmax_row(row, 1.0)[i]) for i, row in enumerate(logits)) / len(logits)


def infonce_both(logits: Matrix) -> tuple[float, float, float]:
    """What is trained with, the mean of both directions; then from images to texts, and from texts to images."""
    rows, columns = infonce(logits), infonce(transpose(logits))
    return (rows + columns) / 2, rows, columns


def generalized(logits: Matrix, power: float) -> list[float]:
    return [(1 - softmax_row(row, 1.0)[i] ** power) / power for i, row in enumerate(logits)]
