"""Compare methods under one protocol, again and again: a grid of runs that keeps what is finished.

srem bench methods --data flickr8k --backbone dual --noise 0.2,0.4,0.6 --seeds 3 -o results/dual.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "compare methods, by command"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="benches", metavar="BENCH", required=True)
    methods = actions.add_parser(
        "methods",
        help="methods against each other over noise rates and seeds",
        description="Train every method at every noise rate with every seed; print a table and write CSV.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    methods.add_argument("--data", default="flickr8k", help="first part of the recipes' names")
    methods.add_argument("--backbone", default="dual", help="comma-separated")
    methods.add_argument("--methods", default="infonce,rcl,srem", help="comma-separated")
    methods.add_argument("--noise", default="0.2,0.4,0.6", help="comma-separated rates")
    methods.add_argument("--protocol", choices=("caption", "image"), default="caption", help="noise protocol")
    methods.add_argument("--seeds", type=int, default=3, help="how many; they count from 0")
    methods.add_argument("--side-by-side", type=int, default=1, help="cells that run at a time")
    methods.add_argument(
        "--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help="for every cell"
    )
    methods.add_argument("-o", "--out", type=Path, default=Path("runs/bench-methods.csv"), help="CSV file")
    methods.set_defaults(act=_methods)


def run(args: argparse.Namespace) -> None:
    args.act(args)


def _methods(args: argparse.Namespace) -> None:
    from sremkit.bench.methods import method_cells, run_methods, summary_table

    args.out.parent.mkdir(parents=True, exist_ok=True)
    cells = method_cells(
        args.data,
        args.backbone.split(","),
        args.methods.split(","),
        [float(rate) for rate in args.noise.split(",")],
        range(args.seeds),
        protocol=args.protocol,
        overrides=args.overrides,
    )
    rows = run_methods(cells, args.out, side_by_side=args.side_by_side)
    print(f"\nsingle models, noise per {args.protocol}, mean ± deviation over {args.seeds} seeds\n")
    print(summary_table(rows))
    print(f"\nwritten to {args.out}")
