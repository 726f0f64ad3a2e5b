"""IN2R in plain loops: neighbours in a memory, mean prototypes, and their loss, written from the formulas."""

from __future__ import annotations

import math

Matrix = list[list[float]]


def dot(x: list[float], y: list[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def unit(x: list[float]) -> list[float]:
    length = math.sqrt(dot(x, x))
    return [a / length for a in x]


def products(left: Matrix, right: Matrix) -> Matrix:
    return [[dot(x, y) for y in right] for x in left]


def neighbours(query: list[float], keys: Matrix, k: int) -> list[int]:
    return sorted(range(len(keys)), key=lambda j: -dot(query, keys[j]))[:k]


def prototypes(queries: Matrix, keys: Matrix, values: Matrix, k: int) -> Matrix:
    found = []
    for query in queries:
        near = neighbours(query, keys, k)
        found.append(unit([sum(values[j][a] for j in near) / len(near) for a in range(len(values[0]))]))
    return found


def symmetric(scores: Matrix) -> float:
    """Mean over the rows of (cross-entropy + the reverse one) / 2, log 0 being log 1e-7; plus the same of columns."""
    total = 0.0
    for matrix in (scores, [list(column) for column in zip(*scores, strict=True)]):
        for i, row in enumerate(matrix):
            whole = sum(math.exp(x) for x in row)
            prob = math.exp(row[i]) / whole
            total += (-math.log(prob) - (1 - prob) * math.log(1e-7)) / 2 / len(scores)
    return total


def prototype_loss(queries: Matrix, found: Matrix, temperature: float) -> float:
    return symmetric([[x / temperature for x in row] for row in products(queries, found)])
