"""Score new pairs with the models of a finished audit, without training.

srem score audits/mine new_pairs.csv -o scored.csv
srem score audits/mine new_pairs.parquet --image path --text title -o scored.parquet
srem score audits/vectors --image-emb images.npy --text-emb texts.npy -o scored.csv

A .csv or .tsv file has your own columns with score, verdict and better caption, the lowest score first; a .parquet
file has every column of an audit's table, in the order of the input. Pairs below the audit's cutoff are flagged.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sremkit.cli import numbers
from sremkit.cli.audit import add_reading, open_audit
from sremkit.cli.progress import StageProgress
from sremkit.errors import UserError

HELP = "score new pairs with the models of an audit"
ENDINGS = (".csv", ".tsv", ".parquet", ".pq")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="AUDIT", help="folder of a finished audit")
    parser.add_argument("pairs", type=Path, nargs="?", metavar="PAIRS", help="new pairs, in any format of an audit")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="a .csv, .tsv or .parquet file")
    add_reading(parser)
    parser.add_argument("--workers", type=numbers.workers, help="processes for features (default: one for each core)")


def run(args: argparse.Namespace) -> None:
    from rich.console import Console

    from sremkit.audit.export import export_table
    from sremkit.audit.score import score_new_pairs

    if args.out.suffix.lower() not in ENDINGS:
        raise UserError(f"{args.out} must end in one of: {', '.join(ENDINGS)}")
    if args.out.exists():
        raise UserError(f"{args.out} exists already; name another file, or remove it first")
    if (args.folder / "config.toml").is_file():
        raise UserError(
            f"{args.folder} is a training run, which has no calibrated scores; audit its pairs first: "
            f"srem audit --run {args.folder} -o DIR, then srem score DIR"
        )
    console = Console(highlight=False, markup=False, soft_wrap=True)
    args.run_folder = None
    source = open_audit(args).source
    with StageProgress(console) as progress:
        table = score_new_pairs(args.folder, source, workers=args.workers, progress=progress.stage)
    export_table(table, args.out)
    flagged, unusable = (sum(map(bool, table[name].to_pylist())) for name in ("is_mismatch", "problem"))
    console.print(f"{args.out}: {len(table):,} rows, {flagged:,} flagged as mismatches, {unusable:,} unusable")
