"""CRCL in plain loops: the active complementary loss and the label of a pair, written from the formulas."""

from __future__ import annotations

import math

Matrix = list[list[float]]


def softmax(row: list[float]) -> list[float]:
    high = max(row)
    terms = [math.exp(x - high) for x in row]
    return [t / sum(terms) for t in terms]


def active_row(row: list[float], i: int, label: float, weight: float) -> float:
    probs = softmax(row)
    pushed, every = 0.0, 0.0
    for j, p in enumerate(probs):
        every += math.tan(p)
        if j != i:
            pushed += math.tan(p)
    return -label * math.log(probs[i]) + weight * pushed / every ** (1 - label)


def active_complementary(scores: Matrix, labels: list[float], weight: float) -> list[float]:
    return [active_row(row, i, labels[i], weight) for i, row in enumerate(scores)]


def probability(scores: Matrix, i: int) -> float:
    column = [row[i] for row in scores]
    return (softmax(scores[i])[i] + softmax(column)[i]) / 2


def new_labels(scores: Matrix, labels: list[float], decay: float, least: float) -> list[float]:
    found = []
    for i, label in enumerate(labels):
        moved = decay * label + (1 - decay) * probability(scores, i)
        found.append(0.0 if moved < least else moved)
    return found


def total(scores: Matrix, labels: list[float], weight: float) -> float:
    turned = [list(column) for column in zip(*scores, strict=True)]
    rows, columns = active_complementary(scores, labels, weight), active_complementary(turned, labels, weight)
    return (sum(rows) + sum(columns)) / len(rows)
