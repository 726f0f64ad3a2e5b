"""Evaluate the best model of a run, or several runs as an ensemble (the mean of their scores).

srem eval runs/mine --split test
srem eval runs/sgr runs/saf --split test --folds 5
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

HELP = "recall of a run's best model, or of several runs together"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of finished runs")
    parser.add_argument(
        "--split", choices=("val", "test"), default="test", help="which split of the run's data"
    )
    parser.add_argument(
        "--folds",
        type=int,
        default=1,
        help="average over consecutive folds of images (5 for the 1K protocol of MS-COCO)",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or whichever there is")
    parser.add_argument(
        "-o", "--out", type=Path, help="JSON file (default: eval-SPLIT.json in the first run)"
    )


def run(args: argparse.Namespace) -> None:
    from sremkit.evaluation.tables import recall_table
    from sremkit.experiment import evaluate_runs

    result = evaluate_runs(args.runs, split=args.split, folds=args.folds, device=args.device)
    kind = "single model" if len(args.runs) == 1 else f"ensemble of {len(args.runs)}"
    noise = result["noise"]
    print(f"{' + '.join(map(str, args.runs))} on {result['split']} ({kind}"
          f"{f', mean of {args.folds} folds' if args.folds > 1 else ''}; trained with noise per {noise['protocol']}, "
          f"rate {noise['rate']:.4f}, index {noise['hash']})\n")  # fmt: skip
    print(recall_table({kind: result["metrics"]}))
    out = args.out or args.runs[0] / f"eval-{args.split}.json"
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"\nwritten to {out}")
