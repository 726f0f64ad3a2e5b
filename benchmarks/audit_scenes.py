"""How many subtle mismatches an audit finds: scenes with captions that are wrong in one word only.

    python -m benchmarks.audit_scenes

Vectors are made without learning from the pairing (`sremkit.bench.scene_vectors`). The audit scores these vectors, and
single words against the patches; then the ground truth is joined.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import make_parser
from sremkit.audit.embed import score_pairs
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.scoring.types import WORD_EPOCHS, ScoringSettings
from sremkit.bench.grid import write_csv
from sremkit.bench.scene_vectors import SceneCaptionVectors, scene_image_vectors
from sremkit.data import Pairs
from sremkit.data.features import ArrayFeatures
from sremkit.data.generated.scenes import SceneTruth, mismatched_scenes
from sremkit.evaluation import detection_metrics

PRECISION = 0.9


def scenes_row(
    num_scenes: int, settings: ScoringSettings, *, rate: float = 0.4, subtle_share: float = 0.5
) -> dict[str, Any]:
    """Make scenes, score them, and measure what was found of each type of mismatch."""
    pairs, truth = mismatched_scenes(num_scenes, seed=settings.seed, rate=rate, subtle_share=subtle_share)
    started, worked = time.monotonic(), time.process_time()
    verdicts = score_pairs(as_vectors(pairs), settings, regions=pairs.image_features)
    noise_rate = verdicts.noise_rate
    return {
        "data": "scenes",
        "pairs": len(pairs),
        "seed": settings.seed,
        "subtle_share": subtle_share,
        "word_epochs": settings.word_epochs,
        **found(verdicts.match_prob, truth, calls=noise_rate is not None),
        "estimated_rate": float("nan") if noise_rate is None else noise_rate.estimate,
        "seconds": time.monotonic() - started,
        "cpu_seconds": time.process_time() - worked,
    }


def found(score: np.ndarray, truth: SceneTruth, *, calls: bool = True) -> dict[str, float]:
    """What a ranking of pairs finds of shuffled and of subtle mismatches at precision 0.9.

    Args:
        score: low is bad.
        calls: whether the audit calls any pair a mismatch.

    Returns:
        "subtle_recall" and "shuffled_recall" where the true precision is 0.9, the same with "_called" where the
        audit itself was asked for it, and the AUROC of each type against the correct pairs. "precision_called" is the
        share of wrong pairs among all called ones, "subtle_precision_called" among those that are not shuffled.
    """
    shuffled = truth.is_noisy & ~truth.is_subtle
    types = {"subtle": truth.is_subtle, "shuffled": shuffled}
    order = np.argsort(score, kind="stable")
    precision = np.cumsum(truth.is_noisy[order]) / np.arange(1, len(order) + 1)
    enough = np.flatnonzero(precision >= PRECISION)
    at_true = np.zeros(len(score), dtype=bool)
    at_true[order[: enough[-1] + 1 if len(enough) else 0]] = True
    called = CutoffRule(precision=PRECISION).flag(score) & calls
    measured: dict[str, float] = {"true_rate": float(truth.is_noisy.mean())}
    for name, of_type in types.items():
        chosen = of_type | ~truth.is_noisy
        measured[f"{name}_auroc"] = detection_metrics(of_type[chosen], score[chosen])["auroc"]
        measured[f"{name}_recall"] = _share(at_true[of_type])
        measured[f"{name}_recall_called"] = _share(called[of_type])
    measured["precision_called"] = _share(truth.is_noisy[called])
    measured["subtle_precision_called"] = _share(truth.is_subtle[called & ~shuffled])
    return measured


def _share(which: np.ndarray) -> float:
    return float(which.mean()) if len(which) else float("nan")


def as_vectors(pairs: Pairs) -> Pairs:
    """The pairs with one vector for each image and each caption."""
    captions = SceneCaptionVectors(pairs.texts).encode(pairs.texts)
    return replace(
        pairs,
        image_features=ArrayFeatures(scene_image_vectors(pairs), name="scenes"),
        text_features=ArrayFeatures(captions, name="scenes"),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("audit_scenes", __doc__)
    parser.add_argument("--scenes", type=int, default=2000, help="images, with five captions each")
    parser.add_argument("--rate", type=float, default=0.4, help="share of wrong pairs")
    parser.add_argument("--subtle-share", type=float, default=0.5, help="share of subtle ones among them")
    parser.add_argument("--word-epochs", type=int, default=WORD_EPOCHS, help="0: do not look at single words")
    parser.add_argument("--seed", type=int, default=0, help="of the scenes and of the scoring")
    parser.add_argument("--out", type=Path, help="CSV to write")
    options = parser.parse_args(arguments)
    row = scenes_row(
        options.scenes,
        ScoringSettings(seed=options.seed, word_epochs=options.word_epochs),
        rate=options.rate,
        subtle_share=options.subtle_share,
    )
    for name, value in row.items():
        print(f"{name:24} {value:.3f}" if isinstance(value, float) else f"{name:24} {value}")
    if options.out is not None:
        write_csv([row], options.out)


if __name__ == "__main__":
    main()
