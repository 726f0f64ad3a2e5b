"""Fields of an audit's summary, as a whole audit and a sharded one write them."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import torch

from sremkit.audit.embed import EmbeddedPairs
from sremkit.audit.filtered import share_left_before
from sremkit.audit.inputs import Source
from sremkit.audit.scoring.remaining_mismatches import remaining, remaining_curve
from sremkit.audit.scoring.threshold_curve import ThresholdCurve
from sremkit.audit.scoring.types import NearMismatches, NoiseRate
from sremkit.version import __version__

RATE_COUNTS = (
    "the noise rate counts pairs that look like an image with another image's caption; captions that nearly fit, of a "
    "very similar image or wrong in single words, are not counted"
)


def rate_facts(
    rate: NoiseRate | None,
    near: NearMismatches | None,
    *,
    scored: int,
    flagged: int,
    expected_wrong: float,
    before: dict[str, Any] | None,
) -> dict[str, Any]:
    """The fields of the summary about rates.

    noise_rate       pairs that look like an image with another image's caption: estimate, low, high
    near_mismatches  the interval with near mismatches included, and whether these vectors can tell
    rate_counts      what the rate counts, and the interval with near mismatches, in words
    remaining        how many of the kept pairs are probably still wrong
    filtered_before  the facts of an earlier audit by which these pairs were filtered
    """
    if near is not None and before is not None:
        near = replace(near, can_tell=False)
    facts: dict[str, Any] = {
        "noise_rate": None if rate is None else asdict(rate),
        "near_mismatches": None if near is None else asdict(near),
        "rate_counts": None if near is None else f"{RATE_COUNTS}; {near.sentence()}",
        "remaining": None,
        "filtered_before": before,
    }
    if rate is not None:
        left = remaining(
            rate,
            near,
            total=scored,
            flagged=flagged,
            expected_wrong=expected_wrong,
            share_before=share_left_before(before),
        )
        facts["remaining"] = {**asdict(left), "sentence": left.sentence()}
    return facts


def curve_points(
    curve: ThresholdCurve | None, rate: NoiseRate | None, near: NearMismatches | None, *, scored: int
) -> dict[str, list[Any]] | None:
    """Precision, recall, and the share of wrong pairs among those kept over the threshold, for JSON."""
    if curve is None or rate is None:
        return None
    points = curve.points()
    left = remaining_curve(rate, near, points["flagged"], points["expected_precision"], total=scored)
    return {**points, **left}


def join_notes(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def count_problems(source: Source, embedded: EmbeddedPairs) -> dict[str, int]:
    """Number of rows that could not be scored, by reason, the most frequent first."""
    reasons = Counter(problem.reason for problem in source.rows.problems.values())
    reasons.update(problem.reason for problem in embedded.problems.values())
    return dict(reasons.most_common())


def versions() -> dict[str, str]:
    return {"sremkit": __version__, "python": platform.python_version(), "torch": torch.__version__}
