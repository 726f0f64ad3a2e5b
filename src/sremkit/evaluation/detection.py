"""Detection of wrong pairs from a score per pair, against the ground truth or the votes of Flickr8k's crowd.

Mismatches are the positive class, and a low score indicates one. The area under the ROC curve is the probability that a
mismatch scores lower than a correct pair; a tie counts half. The average precision sums, over the thresholds from the
lowest score upwards, the gain in recall times the precision.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sremkit.data.pairs import Pairs
from sremkit.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

CROWD_FILE = "crowd_judgements.tsv"  # 47,830 combinations of image and caption


def detection_metrics(
    mismatch: np.ndarray, score: np.ndarray, *, verdict: np.ndarray | None = None, estimated_rate: float | None = None
) -> dict[str, float]:
    """Evaluate a detector of wrong pairs against the ground truth.

    Args:
        mismatch: (n,) the ground truth, True where the pair is wrong.
        score: (n,) how well the pair matches; low indicates a mismatch.
        verdict: (n,) True where the detector predicts a mismatch.
        estimated_rate: the fraction of mismatches that the method estimates, without the ground truth.

    Returns:
        "auroc", "average_precision" (both nan if all pairs are correct or all are wrong) and "true_rate"; with a
        verdict "precision", "recall", "f1" and "verdict_rate"; with an estimated rate "estimated_rate" and "rate_error"
        (estimated minus true). A ratio with denominator 0, such as the precision without any predicted mismatch, is
        nan.
    """
    mismatch = _flags(mismatch, "mismatch")
    score = _scores(score, len(mismatch))
    true_rate = float(mismatch.mean())
    wrong, right = _count_by_score(mismatch, score)
    result = {
        "auroc": _auroc(wrong, right),
        "average_precision": _average_precision(wrong, right),
        "true_rate": true_rate,
    }
    if verdict is not None:
        result |= _verdict_metrics(mismatch, _flags(verdict, "verdict", length=len(mismatch)))
    if estimated_rate is not None:
        if not 0 <= estimated_rate <= 1:
            raise DataError(f"estimated_rate must lie between 0 and 1, got {estimated_rate}")
        result |= {"estimated_rate": float(estimated_rate), "rate_error": float(estimated_rate) - true_rate}
    return result


def crowd_agreement(scores: Tensor | np.ndarray, pairs: Pairs, file: Path) -> float:
    """AUROC of the scores (n, m) against the majority of the crowd, over the combinations of this split."""
    rows, columns, fits = crowd_labels(pairs, file)
    return detection_metrics(~fits, np.asarray(scores)[rows, columns])["auroc"]


def crowd_labels(pairs: Pairs, file: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image indices, text indices and whether the two match by majority vote. Ties are excluded."""
    image_index = {name: k for k, name in enumerate(pairs.image_ids)}
    text_index = {name: k for k, name in enumerate(pairs.pair_ids)}
    rows, columns, fits = [], [], []
    with file.open(encoding="utf-8", newline="") as lines:
        for image, caption, _, yes, no in csv.reader(lines, delimiter="\t"):
            if yes != no and image in image_index and caption in text_index:
                rows.append(image_index[image])
                columns.append(text_index[caption])
                fits.append(int(yes) > int(no))
    return np.array(rows), np.array(columns), np.array(fits, dtype=bool)


def _count_by_score(mismatch: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of wrong and of correct pairs at each distinct score, in ascending order."""
    distinct, group = np.unique(score, return_inverse=True)
    wrong = np.bincount(group[mismatch], minlength=len(distinct))
    right = np.bincount(group[~mismatch], minlength=len(distinct))
    return wrong, right


def _auroc(wrong: np.ndarray, right: np.ndarray) -> float:
    right_above = right.sum() - np.cumsum(right)
    ordered = float((wrong * right_above).sum() + 0.5 * (wrong * right).sum())
    return _ratio(ordered, float(wrong.sum()) * float(right.sum()))


def _average_precision(wrong: np.ndarray, right: np.ndarray) -> float:
    if right.sum() == 0:
        return float("nan")
    precision = np.cumsum(wrong) / np.cumsum(wrong + right)
    return _ratio(float((wrong * precision).sum()), float(wrong.sum()))


def _verdict_metrics(mismatch: np.ndarray, verdict: np.ndarray) -> dict[str, float]:
    found = float(np.count_nonzero(mismatch & verdict))
    flagged = float(np.count_nonzero(verdict))
    wrong = float(np.count_nonzero(mismatch))
    return {
        "precision": _ratio(found, flagged),
        "recall": _ratio(found, wrong),
        "f1": _ratio(2 * found, flagged + wrong),
        "verdict_rate": flagged / len(verdict),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


def _flags(values: np.ndarray, name: str, *, length: int | None = None) -> np.ndarray:
    flags = np.asarray(values)
    if flags.ndim != 1:
        raise DataError(f"{name} must have one dimension, got shape {flags.shape}")
    if len(flags) == 0:
        raise DataError(f"{name} is empty: there is no pair to measure")
    if length is not None and len(flags) != length:
        raise DataError(f"{name} has {len(flags)} pairs, but mismatch has {length}; give one for each pair")
    if flags.dtype != bool:
        if not np.isin(flags, (0, 1)).all():
            raise DataError(f"{name} must be true or false for each pair, got other values ({flags.dtype})")
        flags = flags.astype(bool)
    return flags


def _scores(values: np.ndarray, length: int) -> np.ndarray:
    score = np.asarray(values)
    if score.shape != (length,):
        raise DataError(f"score has shape {score.shape}, but there are {length} pairs; give one score for each")
    if score.dtype.kind not in "fiub":
        raise DataError(f"score must be real numbers, got an array of {score.dtype}")
    if np.isnan(score).any():
        raise DataError(
            f"the score of pair {int(np.argmax(np.isnan(score)))} is NaN and cannot be ranked; "
            "leave such pairs out, or check the model's output for overflow"
        )
    return score
