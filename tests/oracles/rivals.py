"""Losses of rival methods in plain loops, written from their papers' formulas."""

from __future__ import annotations

import math

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


def rcl(scores: Matrix, temperature: float, form: str, q: float) -> float:
    total = 0.0
    for i, row in enumerate(scores):
        probabilities = softmax_row(row, temperature)
        for j, p in enumerate(probabilities):
            if j != i:
                total += phi(form, p, q)
    return total / len(scores)


def infonce(logits: Matrix) -> float:
    return -sum(math.log(softmax_row(row, 1.0)[i]) for i, row in enumerate(logits)) / len(logits)


def generalized(logits: Matrix, power: float) -> list[float]:
    return [(1 - softmax_row(row, 1.0)[i] ** power) / power for i, row in enumerate(logits)]
