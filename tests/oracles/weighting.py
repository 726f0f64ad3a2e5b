"""Entropy, weight and weighted ranking, written from the paper with loops."""

from __future__ import annotations

import math

from oracles.filtration import Mask, Matrix, counts


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softmax_row(logits: Matrix, i: int, valid: Mask = None) -> list[float]:
    kept = [x for j, x in enumerate(logits[i]) if counts(valid, i, j)]
    exponentials = [math.exp(x - max(kept)) if counts(valid, i, j) else 0.0 for j, x in enumerate(logits[i])]
    return [x / math.fsum(exponentials) for x in exponentials]


def normalized_entropy(logits: Matrix, valid: Mask = None) -> list[float]:
    entropies = []
    for i in range(len(logits)):
        p = softmax_row(logits, i, valid)
        candidates = sum(counts(valid, i, j) for j in range(len(p)))
        entropy = -math.fsum(x * math.log(x) for x in p if x > 0)
        entropies.append(entropy / math.log(candidates) if candidates > 1 else 0.0)
    return entropies


def hardest_negative(logits: Matrix, i: int, valid: Mask = None) -> int | None:
    """The first of the highest other candidates; None where there is none."""
    best = None
    for j, x in enumerate(logits[i]):
        if j != i and counts(valid, i, j) and (best is None or x > logits[i][best]):
            best = j
    return best


def sensitivity(logits: Matrix, margin: float, valid: Mask = None) -> list[float]:
    weights = []
    for i, entropy in enumerate(normalized_entropy(logits, valid)):
        hard = hardest_negative(logits, i, valid)
        unsatisfied = hard is not None and margin - sigmoid(logits[i][i]) + sigmoid(logits[i][hard]) > 0
        weights.append(1 - entropy if unsatisfied else 1.0)
    return weights


def weighted_ranking(
    logits: Matrix, weight: list[float], clean: list[bool], margin: float, valid: Mask = None
) -> float:
    losses = []
    for i in range(len(logits)):
        if clean[i]:
            hard = hardest_negative(logits, i, valid)
            gap = 0.0 if hard is None else margin - weight[i] * sigmoid(logits[i][i]) + sigmoid(logits[i][hard])
            losses.append(max(0.0, gap))
    return math.fsum(losses) / len(losses) if losses else 0.0
