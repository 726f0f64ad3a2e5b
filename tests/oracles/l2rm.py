"""L2RM in plain loops: partial transport by scaling of rows and columns, and the two losses, from the formulas."""

from __future__ import annotations

import math

Matrix = list[list[float]]


def partial_transport(cost: Matrix, mass: float, epsilon: float, valid: list[list[bool]], rounds: int) -> Matrix:
    """Scale exp(-C / epsilon), with a row and a column for what stays unmatched, until its sums are the wanted ones."""
    n, m = len(cost), len(cost[0])
    plan = [[math.exp(-cost[i][j] / epsilon) if valid[i][j] else 0.0 for j in range(m)] + [1.0] for i in range(n)]
    plan.append([1.0] * m + [0.0])
    rows, columns = [1 / n] * n + [1 - mass], [1 / m] * m + [1 - mass]
    for _ in range(rounds):
        for i in range(n + 1):
            factor = rows[i] / sum(plan[i])
            plan[i] = [x * factor for x in plan[i]]
        for j in range(m + 1):
            factor = columns[j] / sum(row[j] for row in plan)
            for row in plan:
                row[j] *= factor
    return [row[:m] for row in plan[:n]]


def divergences(scores: Matrix, plan: Matrix, valid: list[list[bool]]) -> float:
    """Mean over the rows of KL(t, P) + KL(P, t), among the valid candidates."""
    total = 0.0
    for row, shares, allowed in zip(scores, plan, valid, strict=True):
        places = [j for j, ok in enumerate(allowed) if ok]
        whole = sum(math.exp(row[j]) for j in places)
        kept = {j: max(shares[j], 1e-10) for j in places}
        for j in places:
            p, t = math.exp(row[j]) / whole, kept[j] / sum(kept.values())
            total += t * math.log(t / p) + p * math.log(p / t)
    return total / len(scores)


def turned(matrix: list[list]) -> list[list]:
    return [list(column) for column in zip(*matrix, strict=True)]


def rematching(scores: Matrix, plan: Matrix, valid: list[list[bool]]) -> float:
    return (divergences(scores, plan, valid) + divergences(turned(scores), turned(plan), turned(valid))) / 2


def symmetric(scores: Matrix) -> list[float]:
    """(cross-entropy + cross-entropy with prediction and target exchanged) / 2, log 0 being log 1e-7."""
    losses = []
    for i, row in enumerate(scores):
        whole = sum(math.exp(x) for x in row)
        probs = [math.exp(x) / whole for x in row]
        reverse = -sum(p * math.log(1e-7) for j, p in enumerate(probs) if j != i)
        losses.append((-math.log(probs[i]) + reverse) / 2)
    return losses
