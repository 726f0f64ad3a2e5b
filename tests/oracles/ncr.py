"""NCR's labels and loss in plain loops, written from its formulas; the sides are two separate little batches."""

from __future__ import annotations

import math

from oracles.triplet import Matrix, soft_margin, triplet


def part(s: Matrix, rows: list[int]) -> Matrix:
    return [[s[i][j] for j in rows] for i in rows]


def strengths(s: Matrix, margin: float) -> list[float]:
    """P of every pair of a batch of its own."""
    return [min(max(margin - loss / 2, 0.0), margin) for loss in triplet(s, [margin] * len(s), "mean")]


def predictions(s: Matrix, margin: float) -> list[float]:
    p = strengths(s, margin)
    best = sorted(p, reverse=True)[: len(p) // 10 + 1]
    reference = math.fsum(best) / len(best)
    return [min(max(x / reference, 0.0), 1.0) if reference > 0 else 0.0 for x in p]


def labels(
    views: list[Matrix], network: int, clean: list[bool], probability: list[float], margin: float
) -> list[float]:
    """`clean` and `probability` are the other network's; `views` are both networks' similarities."""
    found = [0.0] * len(clean)
    right = [i for i, c in enumerate(clean) if c]
    wrong = [i for i, c in enumerate(clean) if not c]
    if right:
        own = predictions(part(views[network], right), margin)
        for i, y in zip(right, own, strict=True):
            found[i] = probability[i] * 1 + (1 - probability[i]) * y
    if wrong:
        first, second = (predictions(part(view, wrong), margin) for view in views)
        for i, a, b in zip(wrong, first, second, strict=True):
            found[i] = (a + b) / 2
    return found


def loss(
    s: Matrix,
    label: list[float],
    clean: list[bool],
    margin: float,
    base: float,
    with_noisy: bool,
    negatives: str = "hardest",
) -> float:
    """Of one network: hinges among the clean pairs and, if wanted, among the noisy ones."""
    total = 0.0
    for side in (True, False):
        rows = [i for i, c in enumerate(clean) if c == side]
        if rows and (side or with_noisy):
            soft = [soft_margin(label[i], margin, "exponential", base) for i in rows]
            total += math.fsum(triplet(part(s, rows), soft, negatives))
    return total
