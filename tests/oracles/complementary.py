"""Complementary learning in both readings, and RCL's log loss, written with loops."""

from __future__ import annotations

import math
import sys

from oracles.filtration import Mask, Matrix, counts
from oracles.weighting import hardest_negative, sigmoid, softmax_row


def selection(logits: Matrix, clean: list[bool], sharpness: float, offset: float, valid: Mask = None) -> Matrix:
    size = len(logits)
    rows = []
    for i in range(size):
        negatives = [j for j in range(size) if j != i and counts(valid, i, j)]
        exponential = {j: math.exp(sharpness * (sigmoid(logits[i][j]) - offset)) for j in negatives}
        likelihood = {j: x / (1 + math.fsum(exponential.values())) for j, x in exponential.items()}
        if clean[i]:
            likelihood.pop(hardest_negative(logits, i, valid), None)  # -inf before the softmax
        whole = math.fsum(math.exp(x) for x in likelihood.values())
        rows.append([math.exp(likelihood[j]) / whole if j in likelihood else 0.0 for j in range(size)])
    return rows


def normalized(logits: Matrix, clean: list[bool], sharpness: float, offset: float, valid: Mask = None) -> float:
    labels = selection(logits, clean, sharpness, offset, valid)
    losses = []
    for i, row in enumerate(labels):
        negatives = sum(counts(valid, i, j) for j in range(len(row))) - 1
        losses.append(-negatives * math.fsum(q * log_rest(logits, i, j, valid) for j, q in enumerate(row) if q))
    return math.fsum(losses) / len(losses)


def log_rest(logits: Matrix, i: int, j: int, valid: Mask = None) -> float:
    """log(1 - P_ij), from the probabilities of the others so that nothing cancels."""
    p = softmax_row(logits, i, valid)
    return math.log(math.fsum(x for k, x in enumerate(p) if k != j))


def printed(logits: Matrix, clean: list[bool], sharpness: float, offset: float, valid: Mask = None) -> float:
    size = len(logits)
    labels = selection(logits, clean, sharpness, offset, valid)
    losses = []
    for i in range(size):
        negatives = [j for j in range(size) if j != i and counts(valid, i, j)]
        logs = []
        for j in negatives:
            rectified = math.fsum(labels[k][i] * sigmoid(logits[k][j]) for k in range(size) if counts(valid, k, j))
            logs.append(math.log(max(1 - rectified, sys.float_info.epsilon)))
        losses.append(-math.fsum(logs) / len(logs) if logs else 0.0)
    return math.fsum(losses) / size


def rcl_log(logits: Matrix) -> float:
    """RCL's loss with the log function: every negative counts alike."""
    size = len(logits)
    return -math.fsum(log_rest(logits, i, j) for i in range(size) for j in range(size) if j != i) / size
