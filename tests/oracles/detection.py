"""Detection metrics by loops over pairs and thresholds."""

from __future__ import annotations


def auroc(mismatch: list[bool], score: list[float]) -> float:
    """Share of (wrong, right) couples in which the wrong pair scores lower; a tie is half a win."""
    wins, couples = 0.0, 0
    for wrong, low in zip(mismatch, score, strict=True):
        for other, high in zip(mismatch, score, strict=True):
            if wrong and not other:
                couples += 1
                wins += 1.0 if low < high else 0.5 if low == high else 0.0
    return wins / couples


def average_precision(mismatch: list[bool], score: list[float]) -> float:
    """For each threshold, call everything at or below it a mismatch; gain in recall times precision."""
    total = sum(mismatch)
    area, recall_before = 0.0, 0.0
    for threshold in sorted(set(score)):
        found, called = 0, 0
        for wrong, value in zip(mismatch, score, strict=True):
            if value <= threshold:
                called += 1
                found += wrong
        area += (found / total - recall_before) * (found / called)
        recall_before = found / total
    return area
