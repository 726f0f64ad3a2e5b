"""What `srem bench questions` can be told; apart from the bench itself, so that help is there at once."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default="flickr8k", help="first part of the recipe's name, or NAME:PATH")
    parser.add_argument("--backbone", default="dual", help="second part of the recipe's name")
    parser.add_argument("--recipe", help="name or file, in the place of DATA-BACKBONE-srem")
    parser.add_argument("--noise", default="0.4,0.6", help="comma-separated rates")
    parser.add_argument("--only", default="", help="comma-separated questions or answers; all without it")
    parser.add_argument("--seeds", type=int, default=3, help="how many; they count from 0")
    parser.add_argument("--side-by-side", type=int, default=1, help="cells that run at a time")
    parser.add_argument(
        "--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help="for every cell"
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/bench-questions.csv"), help="CSV file")
    parser.add_argument(
        "--table", type=Path, action="append", default=[], metavar="FILE", help="also as .md, .tex or .html"
    )
