"""NPC in plain loops, for a model with logits x_i' W y_j: a step on a batch, its effect on trusted pairs, the total."""

from __future__ import annotations

import math

Matrix = list[list[float]]


def logits(images: Matrix, texts: Matrix, weights: Matrix) -> Matrix:
    found = []
    for x in images:
        row = []
        for y in texts:
            row.append(sum(x[a] * weights[a][b] * y[b] for a in range(len(x)) for b in range(len(y))))
        found.append(row)
    return found


def softmax(row: list[float]) -> list[float]:
    high = max(row)
    terms = [math.exp(v - high) for v in row]
    return [t / sum(terms) for t in terms]


def losses(scores: Matrix) -> list[float]:
    """-(log P_ii of the row + log P_ii of the column) / 2."""
    columns = [list(column) for column in zip(*scores, strict=True)]
    return [-(math.log(softmax(scores[i])[i]) + math.log(softmax(columns[i])[i])) / 2 for i in range(len(scores))]


def slope(images: Matrix, texts: Matrix, weights: Matrix) -> Matrix:
    """d/dW of the mean loss: (softmax - identity) of rows and columns, halved, times x_i y_j'."""
    scores = logits(images, texts, weights)
    n = len(scores)
    columns = [list(column) for column in zip(*scores, strict=True)]
    result = [[0.0] * len(texts[0]) for _ in images[0]]
    for i in range(n):
        for j in range(n):
            same = 1.0 if i == j else 0.0
            error = (softmax(scores[i])[j] - same + softmax(columns[j])[i] - same) / (2 * n)
            for a in range(len(images[0])):
                for b in range(len(texts[0])):
                    result[a][b] += error * images[i][a] * texts[j][b]
    return result


def weight(before: list[float], after: list[float]) -> float:
    ratio = sum(b / a for b, a in zip(before, after, strict=True)) / len(before)
    return 1.0 if ratio >= 1 else math.tanh(ratio)


def step(images: Matrix, texts: Matrix, weights: Matrix, rate: float) -> Matrix:
    gradient = slope(images, texts, weights)
    return [[w - rate * g for w, g in zip(*rows, strict=True)] for rows in zip(weights, gradient, strict=True)]


def total(
    images: Matrix, texts: Matrix, weights: Matrix, memory: list[list[int]], rate: float, memory_weight: float
) -> tuple[float, list[float]]:
    """The batch are the first pairs, as many as have a memory."""
    n = len(memory[0])
    moved = step(images[:n], texts[:n], weights, rate)
    before, after = [], []
    for rows in memory:  # by image, by text
        x, y = [images[k] for k in rows], [texts[k] for k in rows]
        before.append(losses(logits(x, y, weights)))
        after.append(losses(logits(x, y, moved)))
    own = losses(logits(images[:n], texts[:n], weights))
    w = [weight([part[i] for part in before], [part[i] for part in after]) for i in range(n)]
    kept = sum(sum(part) for part in before) / n
    return sum(w[i] * own[i] for i in range(n)) / n + memory_weight * kept, w
