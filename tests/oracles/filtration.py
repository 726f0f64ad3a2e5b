"""Energy, its bound and the filter, written from the paper with loops; `valid` is a matrix of booleans or None."""

from __future__ import annotations

import math

Matrix = list[list[float]]
Mask = list[list[bool]] | None


def counts(valid: Mask, i: int, j: int) -> bool:
    return valid is None or valid[i][j]


def transpose(matrix: list[list]) -> list[list]:
    return [list(column) for column in zip(*matrix, strict=True)]


def energy(logits: Matrix, valid: Mask = None) -> list[float]:
    energies = []
    for i, row in enumerate(logits):
        kept = [x for j, x in enumerate(row) if counts(valid, i, j)]
        highest = max(kept)
        energies.append(-(highest + math.log(math.fsum(math.exp(x - highest) for x in kept))))
    return energies


def select_clean(logits: Matrix, threshold: float, valid: Mask = None) -> list[bool]:
    clean = []
    for i, (row, of_row) in enumerate(zip(logits, energy(logits, valid), strict=True)):
        is_best = all(row[i] > x for j, x in enumerate(row) if j != i and counts(valid, i, j))
        clean.append(is_best and of_row < threshold)
    return clean


def energy_bound(energies: list[float], clean: list[bool], clean_margin: float, noisy_margin: float) -> float:
    too_high = [max(0.0, e - clean_margin) ** 2 for e, c in zip(energies, clean, strict=True) if c]
    too_low = [max(0.0, noisy_margin - e) ** 2 for e, c in zip(energies, clean, strict=True) if not c]
    return sum(math.fsum(x) / len(x) for x in (too_high, too_low) if x)


def level(logits: Matrix, valid: Mask = None) -> float:
    """Mean over both directions of the log-sum-exp of a query's negatives."""
    means = []
    for F, mask in ((logits, valid), (transpose(logits), None if valid is None else transpose(valid))):
        of_rows = []
        for i, row in enumerate(F):
            negatives = [x for j, x in enumerate(row) if j != i and counts(mask, i, j)]
            of_rows.append(math.log(math.fsum(math.exp(x) for x in negatives)))
        means.append(math.fsum(of_rows) / len(of_rows))
    return sum(means) / 2
