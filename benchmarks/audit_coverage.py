"""Whether the noise rate of an audit lies in its interval, and the asked precision is kept, over kinds of mismatches.

    python -m benchmarks.audit_coverage --sizes 300 1000 --draws 3 --out results/audit-coverage.csv

Every draw is a new collection of Flickr8k's frozen vectors, new wrong captions and a new seed of the scoring. A draw is
covered if the true rate lies in the interval with near mismatches, or if the summary says that it cannot tell.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import make_parser
from benchmarks.mismatch_kinds import KINDS, TextEncoder, make_collection
from sremkit.audit.scoring.cross_fit import CrossFitScorer
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.scoring.types import ScoringSettings
from sremkit.bench.grid import write_csv
from sremkit.bench.tables import aligned
from sremkit.data import Pairs, read_pairs
from sremkit.data.training_pairs import resolve_source
from sremkit.evaluation import detection_metrics

PRECISION = 0.95
TOLERANCE = 0.03
NOT_COUNTED = "one word wrong"  # the summary says that the rate does not count these


def coverage_row(
    pairs: Pairs, kind: str, rate: float, size: int, captions: int, seed: int, encoder: TextEncoder
) -> dict[str, Any]:
    """Audit one collection and compare with the truth."""
    made = make_collection(pairs, kind, rate, size=size, captions_per_image=captions, seed=seed, encoder=encoder)
    started = time.process_time()
    scores = CrossFitScorer(ScoringSettings(seed=seed), workers=1).fit_score(made.vectors)
    seconds = time.process_time() - started
    flagged = scores.flag(CutoffRule(precision=PRECISION))
    known = scores.noise_rate, scores.near
    nan = float("nan")
    row = {
        "kind": kind,
        "asked_rate": rate,
        "pairs": size,
        "captions": captions,
        "seed": seed,
        "true_rate": made.rate,
        "estimate": nan if known[0] is None else known[0].estimate,
        "low": nan if known[0] is None else known[0].low,
        "high": nan if known[0] is None else known[0].high,
        "high_with_near": nan if known[1] is None else known[1].high,
        "can_tell": bool(known[1] is not None and known[1].can_tell),
        "in_interval": bool(known[1] is not None and known[1].low <= made.rate <= known[1].high),
        "flagged": int(flagged.sum()),
        "precision": float(made.is_noisy[flagged].mean()) if flagged.any() else nan,
        "recall": float(flagged[made.is_noisy].mean()) if made.is_noisy.any() else nan,
        "auroc": nan,
        "cpu_seconds": seconds,
    }
    if made.is_noisy.any():
        row["auroc"] = detection_metrics(made.is_noisy, scores.match_prob)["auroc"]
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line for each kind, size and number of captions."""
    lines = [["kind", "pairs", "captions", "draws", "in interval", "says how many", "holds", "precision kept", "AUROC"]]
    for key in dict.fromkeys((row["kind"], row["pairs"], row["captions"]) for row in rows):
        some = [row for row in rows if (row["kind"], row["pairs"], row["captions"]) == key]
        holds = [row["in_interval"] or not row["can_tell"] or key[0] == NOT_COUNTED for row in some]
        kept = [not row["flagged"] or row["precision"] >= PRECISION - TOLERANCE for row in some]
        aurocs = [row["auroc"] for row in some if np.isfinite(row["auroc"])]
        shares = (np.mean([bool(row[name]) for row in some]) for name in ("in_interval", "can_tell"))
        figures = [f"{share:.2f}" for share in (*shares, np.mean(holds), np.mean(kept))]
        mean_auroc = f"{np.mean(aurocs):.3f}" if aurocs else ""
        lines.append([key[0], f"{key[1]:,}", str(key[2]), str(len(some)), *figures, mean_auroc])
    return aligned(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("audit_coverage", __doc__)
    parser.add_argument("--data", default="$SREMKIT_DATA/flickr8k", help="the folder of Flickr8k")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="kinds of mismatches")
    parser.add_argument("--rates", type=float, nargs="*", default=[0.0, 0.1, 0.3, 0.6], help="shares of wrong pairs")
    parser.add_argument("--sizes", type=int, nargs="*", default=[300, 1000, 6000], help="numbers of pairs")
    parser.add_argument("--captions", type=int, default=1, help="captions of each image, 1 to 5")
    parser.add_argument("--draws", type=int, default=3, help="collections for each cell")
    parser.add_argument("--first-seed", type=int, default=0, help="of the draws")
    parser.add_argument("--out", type=Path, help="CSV to write")
    options = parser.parse_args(arguments)
    folder = resolve_source(options.data)
    pairs = read_pairs(folder, split="train", format="flickr8k", features="pooled")
    encoder, rows = TextEncoder(), []
    for seed in range(options.first_seed, options.first_seed + options.draws):
        for size in options.sizes:
            for kind in options.kinds:
                for rate in options.rates:
                    absent = (pairs.num_images - size // options.captions) * 5  # captions of images that are left
                    if kind == "partner absent" and rate * size > absent:
                        continue
                    rows.append(coverage_row(pairs, kind, rate, size, options.captions, seed, encoder))
                    if options.out is not None:
                        write_csv(rows, options.out)
    print(table(rows))


if __name__ == "__main__":
    main()
