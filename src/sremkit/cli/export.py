"""Write what an audit leaves: the pairs worth keeping, in the form that the next tool reads.

srem export audits/mine -o keep.txt
srem export audits/mine --what csv -o clean.csv
srem export audits/shards --what shards -o clean-shards
srem export audits/mine --what csv --which drop --fraction 0.1 -o worst.csv

keep-list  the ids, one a line; `srem train RECIPE --keep keep.txt` reads it without rewriting any data
csv        your own columns, with .tsv as the ending tab-separated
parquet    your own columns in their own types
shards     the tar shards without the other samples, in a new folder
uids       DataComp's sorted array of 128-bit uids (.npy)

Pairs that are called mismatches, and rows that could not be read, are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sremkit.cli.audit import add_choice

HELP = "write the pairs that an audit found worth keeping"
KINDS = ("keep-list", "csv", "parquet", "shards", "uids")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of a finished audit")
    parser.add_argument("-o", "--out", type=Path, required=True, help="file to write; a folder for shards")
    parser.add_argument("--what", choices=KINDS, default="keep-list", help="see above")
    parser.add_argument("--which", choices=("keep", "drop"), default="keep", help="or the ones to drop")
    parser.add_argument("--split", help="only the pairs of this split (default: all)")
    add_choice(parser)


def run(args: argparse.Namespace) -> None:
    from sremkit.audit.export import export
    from sremkit.audit.stages import Choice

    given = (args.precision, args.fraction, args.threshold)
    counts = export(
        args.folder,
        args.out,
        what=args.what,
        which=args.which,
        choice=None if given == (None, None, None) else Choice(*given),
        split=args.split,
    )
    print(f"{args.out}: {counts.written:,} of {counts.of:,} rows")
    if counts.left_out:
        print(f"{counts.left_out:,} were left out: they have no id, or a name that leads out of its folder")
    if args.what == "keep-list" and args.which == "keep":
        print(f"train on them:  srem train RECIPE --keep {args.out}")
