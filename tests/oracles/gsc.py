"""GSC in plain loops: the structure loss, the consistency of a pair, and the total, written from the formulas."""

from __future__ import annotations

import math

Matrix = list[list[float]]


def cross_entropy(row: list[float], answer: int) -> float:
    high = max(row)
    return high + math.log(sum(math.exp(x - high) for x in row)) - row[answer]


def cosines(vectors: Matrix) -> Matrix:
    lengths = [math.sqrt(sum(x * x for x in v)) for v in vectors]
    found = []
    for v, length in zip(vectors, lengths, strict=True):
        dots = [sum(x * y for x, y in zip(v, w, strict=True)) for w in vectors]
        found.append([dot / (length * other) for dot, other in zip(dots, lengths, strict=True)])
    return found


def structure(images: Matrix, texts: Matrix, labels: list[float], temperature: float) -> list[float]:
    losses = []
    for i in range(len(images)):
        row = []
        for j in range(len(texts)):
            agreement = 0.0
            for k, y in enumerate(labels):
                agreement += y**2 * images[i][k] * texts[j][k]
            row.append(agreement / temperature)
        losses.append(cross_entropy(row, i))
    return losses


def consistency(images: Matrix, texts: Matrix, labels: list[float]) -> list[float]:
    found = []
    for image_row, text_row in zip(images, texts, strict=True):
        a = [y * x for y, x in zip(labels, image_row, strict=True)]
        b = [y * x for y, x in zip(labels, text_row, strict=True)]
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        found.append(dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(x * x for x in b)))
    return found


def total(
    scores: Matrix, image_vectors: Matrix, text_vectors: Matrix, labels: list[float], weight: float, temperature: float
) -> float:
    turned = [list(column) for column in zip(*scores, strict=True)]
    places = structure(cosines(image_vectors), cosines(text_vectors), labels, temperature)
    value = 0.0
    for i, y in enumerate(labels):
        value += y * (cross_entropy(scores[i], i) + cross_entropy(turned[i], i)) / 2 + weight * y * places[i]
    return value / len(labels)


def posterior(values: list[float], iterations: int = 10) -> list[float]:
    """P(upper component) of two Gaussians by EM from the best cut in two, on values scaled to [0, 1]."""
    low, high = min(values), max(values)
    x = [(v - low) / (high - low) for v in values]
    ordered, best = sorted(x), (math.inf, 0.0)
    for cut in range(1, len(x)):
        spread = 0.0
        for part in (ordered[:cut], ordered[cut:]):
            mean = sum(part) / len(part)
            spread += sum((v - mean) ** 2 for v in part)
        best = min(best, (spread, ordered[cut - 1]))
    upper = [0.0 if v <= best[1] else 1.0 for v in x]
    before, changed = -math.inf, math.inf
    for step in range(iterations + 1):
        parts = []
        for share in ([1 - u for u in upper], upper):
            mass = sum(share)
            mean = sum(s * v for s, v in zip(share, x, strict=True)) / mass
            variance = sum(s * (v - mean) ** 2 for s, v in zip(share, x, strict=True)) / mass + 5e-4
            parts.append((mass / len(x), mean, variance))
        if step > 0 and changed < 1e-2:
            break
        densities = [
            [w * math.exp(-((v - m) ** 2) / (2 * s)) / math.sqrt(2 * math.pi * s) for w, m, s in parts] for v in x
        ]
        likelihood = sum(math.log(sum(d)) for d in densities) / len(x)
        if step < iterations:
            upper = [d[1] / sum(d) for d in densities]
        changed, before = abs(likelihood - before), likelihood
    densities = [[w * math.exp(-((v - m) ** 2) / (2 * s)) / math.sqrt(2 * math.pi * s) for w, m, s in parts] for v in x]
    return [d[1] / sum(d) for d in densities]
