"""How well a score per pair tells the wrong pairs from the right ones.

The positives are the mismatches, and a low score stands for one. The area under the ROC curve is the chance
that a mismatch scores lower than a right pair, a tie counting half. The average precision adds up, over the
thresholds from the lowest score upwards, the gain in recall times the precision there.
"""

from __future__ import annotations

import numpy as np

from sremkit.errors import DataError


def detection_metrics(
    mismatch: np.ndarray,
    score: np.ndarray,
    *,
    verdict: np.ndarray | None = None,
    estimated_rate: float | None = None,
) -> dict[str, float]:
    """Measure a detector of wrong pairs against the truth.

    Args:
        mismatch: (n,) the truth, True where the pair is wrong.
        score: (n,) how well the pair fits; low is suspicious.
        verdict: (n,) True where the pair is called a mismatch.
        estimated_rate: the share of mismatches that the method claims, without having seen the truth.

    Returns:
        "auroc", "average_precision" (both nan if all pairs are right or all are wrong) and "true_rate"; with
        a verdict "precision", "recall", "f1" and "verdict_rate"; with an estimated rate "estimated_rate" and
        "rate_error" (estimated less true). A share of nothing, such as the precision of a verdict that calls
        no pair a mismatch, is nan.
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
            raise DataError(f"estimated_rate is a share between 0 and 1, got {estimated_rate}")
        result |= {"estimated_rate": float(estimated_rate), "rate_error": float(estimated_rate) - true_rate}
    return result


def _count_by_score(mismatch: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wrong and right pairs at each distinct score, the lowest first: pairs that tie stay together."""
    distinct, group = np.unique(score, return_inverse=True)
    wrong = np.bincount(group[mismatch], minlength=len(distinct))
    right = np.bincount(group[~mismatch], minlength=len(distinct))
    return wrong, right


def _auroc(wrong: np.ndarray, right: np.ndarray) -> float:
    right_above = right.sum() - np.cumsum(right)
    ordered = float((wrong * right_above).sum() + 0.5 * (wrong * right).sum())
    return _share(ordered, float(wrong.sum()) * float(right.sum()))


def _average_precision(wrong: np.ndarray, right: np.ndarray) -> float:
    if right.sum() == 0:
        return float("nan")
    precision = np.cumsum(wrong) / np.cumsum(wrong + right)
    return _share(float((wrong * precision).sum()), float(wrong.sum()))


def _verdict_metrics(mismatch: np.ndarray, verdict: np.ndarray) -> dict[str, float]:
    found = float(np.count_nonzero(mismatch & verdict))
    called = float(np.count_nonzero(verdict))
    wrong = float(np.count_nonzero(mismatch))
    return {
        "precision": _share(found, called),
        "recall": _share(found, wrong),
        "f1": _share(2 * found, called + wrong),
        "verdict_rate": called / len(verdict),
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


def _flags(values: np.ndarray, name: str, *, length: int | None = None) -> np.ndarray:
    flags = np.asarray(values)
    if flags.ndim != 1:
        raise DataError(f"{name} must be one list of pairs, got shape {flags.shape}")
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
        raise DataError(
            f"score has shape {score.shape}, but there are {length} pairs; give one score for each"
        )
    if score.dtype.kind not in "fiub":
        raise DataError(f"score must be real numbers, got an array of {score.dtype}")
    if np.isnan(score).any():
        raise DataError(
            f"the score of pair {int(np.argmax(np.isnan(score)))} is NaN and cannot be ranked; "
            "leave such pairs out, or check the model's output for overflow"
        )
    return score
