"""Evaluate the best model of a run, or several runs as an ensemble (the mean of their scores).

srem eval runs/mine --split test
srem eval runs/sgr runs/saf --split test --folds 5
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sremkit.cli import numbers

HELP = "recall of a run's best model, or of several runs together"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of finished runs")
    parser.add_argument("--split", choices=("val", "test"), default="test", help="which split of the run's data")
    parser.add_argument(
        "--folds",
        type=numbers.count,
        help="average over consecutive folds of images, 5 for the 1K protocol of MS-COCO "
        "(default: data.test_folds of the first run's recipe for the test split, or else 1)",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or whichever there is")
    parser.add_argument(
        "-o", "--out", type=Path, help="JSON file (default: in the first run, eval-SPLIT and the others' names)"
    )


def run(args: argparse.Namespace) -> None:
    from sremkit.bench.tables import aligned
    from sremkit.data.noise import protocol_label
    from sremkit.evaluation.recall import RECALLS
    from sremkit.experiment import evaluate_runs
    from sremkit.io import write_json

    result = evaluate_runs(args.runs, split=args.split, folds=args.folds, device=args.device)
    kind = "single model" if len(args.runs) == 1 else f"ensemble of {len(args.runs)}"
    noises = [
        f"noise {protocol_label(noise['protocol'])}, rate {noise['rate']:.4f}, index {noise['hash']}"
        for noise in result["noises"]
    ]
    folds = result["folds"]
    print(f"{' + '.join(map(str, args.runs))} on {result['split']} ({kind}"
          f"{f', mean of {folds} folds' if folds > 1 else ''}; trained with "
          f"{'; '.join(dict.fromkeys(noises))})\n")  # fmt: skip
    head = [["", "image→text", "", "", "text→image", "", "", ""], ["", *["R@1", "R@5", "R@10"] * 2, "R_sum"]]
    print(aligned([*head, [kind, *(f"{result['metrics'][key]:.1f}" for key in (*RECALLS, "rsum"))]]))
    if result["seen_in_training"]:
        print("\nThese pairs were trained on: the data has no splits, so this says what was learnt by heart.")
    out = args.out or args.runs[0] / _name(args, folds)
    write_json(out, result)
    print(f"\nwritten to {out}")


def _name(args: argparse.Namespace, folds: int) -> str:
    """A file for each kind of result, so that an ensemble does not replace what its first member reached alone."""
    others = "".join(f"+{path.name}" for path in args.runs[1:])
    averaged = f"-{folds}-folds" if folds > 1 else ""
    return f"eval-{args.split}{others}{averaged}.json"
