"""DECL in plain loops: evidence, Dirichlet loss, division and growing hardness, written from the formulas."""

from __future__ import annotations

import math

Matrix = list[list[float]]


def digamma(x: float) -> float:
    """psi(x) = psi(x + 1) - 1/x up to large x, where the asymptotic series is exact to the last digits."""
    below = 0.0
    while x < 30:
        below -= 1 / x
        x += 1
    series = 1 / (12 * x**2) - 1 / (120 * x**4) + 1 / (252 * x**6) - 1 / (240 * x**8)
    return below + math.log(x) - 1 / (2 * x) - series


def transpose(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix, strict=True)]


def evidence(similarity: Matrix, temperature: float) -> Matrix:
    return [[math.exp(s / temperature) for s in row] for row in similarity]


def from_uniform(concentration: list[float]) -> float:
    total = sum(concentration)
    value = math.lgamma(total) - math.lgamma(len(concentration))
    for a in concentration:
        value += -math.lgamma(a) + (a - 1) * (digamma(a) - digamma(total))
    return value


def evidential_row(row: list[float], answer: int | None, kl_weight: float) -> float:
    alphas = [e + 1 for e in row]
    total = sum(alphas)
    loss, tilted = 0.0, []
    for j, alpha in enumerate(alphas):
        y = 1.0 if j == answer else 0.0
        loss += (y - alpha / total) ** 2
        loss += alpha * (total - alpha) / (total**2 * (total + 1))
        tilted.append(1 + (alpha - 1) * (1 - y))
    return loss + kl_weight * from_uniform(tilted)


def evidential(e: Matrix, clean: list[bool], kl_weight: float) -> list[float]:
    return [evidential_row(row, i if clean[i] else None, kl_weight) for i, row in enumerate(e)]


def has_most_evidence(e: Matrix) -> list[bool]:
    """argmax over j of (e + e^T)_ij / row sum, which must be i and alone."""
    clean = []
    for i in range(len(e)):
        both = [e[i][j] + e[j][i] for j in range(len(e))]
        shares = [value / sum(both) for value in both]
        clean.append(all(shares[i] > shares[j] for j in range(len(e)) if j != i))
    return clean


def hardness(similarity: Matrix, margin: float, num_hardest: int) -> list[float]:
    b = len(similarity)
    losses = []
    for i in range(b):
        image_asks = [max(0.0, margin + similarity[i][j] - similarity[i][i]) for j in range(b)]
        text_asks = [max(0.0, margin + similarity[j][i] - similarity[i][i]) for j in range(b)]
        image_asks[i] = text_asks[i] = 0.0
        taken = min(num_hardest, b)
        hardest = sorted(image_asks)[-taken:] + sorted(text_asks)[-taken:]
        losses.append(sum(hardest) / taken)
    return losses


def total(
    logits: Matrix,
    clean: list[bool],
    *,
    temperature: float,
    kl_weight: float,
    ranking_weight: float,
    margin: float,
    num_hardest: int,
) -> float:
    similarity = [[math.tanh(f) for f in row] for row in logits]
    e = evidence(similarity, temperature)
    rows, columns = evidential(e, clean, kl_weight), evidential(transpose(e), clean, kl_weight)
    evidential_mean = sum(rows[i] + columns[i] for i in range(len(e))) / len(e)
    hinges = hardness(similarity, margin, num_hardest)
    return evidential_mean + ranking_weight * sum(h for h, sure in zip(hinges, clean, strict=True) if sure)
