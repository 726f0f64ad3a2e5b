"""What decisions of a review bring: Flickr8k, one caption an image, audited before and after 200 simulated decisions.

    python -m benchmarks.review_decisions --protocols caption shared-word --decisions 20 200 --seeds 0 1 2

A simulated person decides by the ground truth, on the pairs that `srem review` shows first in the order "most useful
first". All figures after it are of the pairs without a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import make_parser
from sremkit.audit.embed import score_pairs
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.scoring.types import PairScores, ScoringSettings
from sremkit.bench.grid import write_csv
from sremkit.bench.tables import aligned
from sremkit.data import Noise, Pairs, make_noise, read_pairs
from sremkit.data.pairs import MISSING
from sremkit.data.training_pairs import resolve_source
from sremkit.evaluation import detection_metrics
from sremkit.review.reviewed_audit import logit

PRECISE = CutoffRule(precision=0.95)


def one_caption(pairs: Pairs, count: int) -> Pairs:
    """The first caption of each of the first `count` images."""
    _, first = np.unique(pairs.image_of_text, return_index=True)
    return pairs.select(np.sort(first)[:count])


def most_useful(scores: PairScores, count: int) -> np.ndarray:
    """The pairs nearest to the cutoff, in the order of `srem review`."""
    flagged = scores.match_prob[scores.flag(PRECISE)]
    cutoff = np.array(flagged.max() if len(flagged) else 0.5)
    return np.argsort(np.abs(logit(scores.match_prob) - logit(cutoff)), kind="stable")[:count]


def figures(scores: PairScores, is_wrong: np.ndarray, rows: np.ndarray) -> dict[str, Any]:
    """Of the pairs `rows`."""
    flagged = scores.flag(PRECISE)[rows]
    found = detection_metrics(is_wrong[rows], scores.match_prob[rows], verdict=flagged)
    rate = scores.noise_rate
    return {
        "estimated_rate": None if rate is None else rate.estimate,
        "rate_low": None if rate is None else rate.low,
        "rate_high": None if rate is None else rate.high,
        "auroc": found["auroc"],
        "flagged": int(flagged.sum()),
        "precision": float(is_wrong[rows][flagged].mean()) if flagged.any() else float("nan"),
        "recall": float(flagged[is_wrong[rows]].mean()),
    }


def rows_of(pairs: Pairs, noise: Noise, decisions: Sequence[int], *, seed: int) -> list[dict[str, Any]]:
    """A row before, and one after each number of decisions, on the same pairs."""
    settings = ScoringSettings(seed=seed)
    before = score_pairs(pairs, settings)
    shown = most_useful(before, max(decisions))
    others = np.setdiff1d(np.arange(len(pairs)), shown)
    rows = [{"decisions": 0, **figures(before, noise.is_noisy, others)}]
    for count in decisions:
        label = np.full(len(pairs), MISSING)
        label[shown[:count]] = (~noise.is_noisy[shown[:count]]).astype(np.int64)
        rows.append({"decisions": count, **figures(score_pairs(pairs, settings, label=label), noise.is_noisy, others)})
    facts = {"protocol": noise.protocol, "pairs": len(pairs), "seed": seed, "true_rate": float(noise.is_noisy.mean())}
    return [{**facts, **row} for row in rows]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("review_decisions", __doc__)
    parser.add_argument("--protocols", nargs="+", default=["caption", "shared-word"])
    parser.add_argument("--rate", type=float, default=0.4)
    parser.add_argument("--pairs", type=int, default=6000)
    parser.add_argument("--decisions", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    source = resolve_source("$SREMKIT_DATA/flickr8k")
    clean = one_caption(read_pairs(source, split="train", format="flickr8k", features="pooled"), args.pairs)
    rows: list[dict[str, Any]] = []
    for protocol in args.protocols:
        for seed in args.seeds:
            noise = make_noise(clean.image_of_text, args.rate, protocol, seed, texts=clean.texts)
            rows += rows_of(clean.paired_as(noise.image_of_text), noise, args.decisions, seed=seed)
            if args.out is not None:
                write_csv(rows, args.out)
    shown = [list(rows[0])]
    shown += [[f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    print(aligned(shown))


if __name__ == "__main__":
    main()
