"""Write the pairs that an audit keeps, in the format that the next tool reads.

srem export audits/mine -o keep.txt
srem export audits/mine -o clean.csv
srem export audits/mine --select all -o verdicts.csv
srem export audits/shards --format shards -o clean-shards
srem export audits/mine --select drop --fraction 0.1 -o lowest.csv
srem export audits/mine --select all --format fiftyone -o fiftyone

The file's ending decides the format (.txt, .csv, .tsv, .parquet, .npy); --format names one:

keep-list  the ids, one a line; `srem train RECIPE --keep keep.txt` reads it, so no data need be rewritten
csv        your own columns with score, verdict and better caption, the lowest score first; .tsv is tab-separated
parquet    your own columns in their own types
shards     the tar shards without the other samples, in a new folder
uids       DataComp's sorted array of 128-bit uids (.npy)
fiftyone   labels.json and data.json that FiftyOne imports as FiftyOneImageClassificationDataset

Pairs that are flagged as mismatches, and rows that could not be read, are left out. Decisions of `srem review` override
the verdicts; new captions are written to csv, parquet and shards, and such pairs are left out of lists of ids.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sremkit.cli.audit import add_cutoff

HELP = "write the pairs that an audit keeps"
FORMATS = ("keep-list", "csv", "parquet", "shards", "uids", "fiftyone")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of a finished audit")
    parser.add_argument("-o", "--out", type=Path, required=True, help="file or folder to write")
    parser.add_argument("--format", choices=FORMATS, help="see above (default: by the file's ending)")
    parser.add_argument("--select", choices=("keep", "drop", "all"), default="keep", help="which rows to write")
    formulas = "csv: write cells that begin with = + - @ as they are, without an apostrophe in front"
    parser.add_argument("--formulas", action="store_true", help=formulas)
    parser.add_argument("--split", help="only the pairs of this split (default: all)")
    add_cutoff(parser)


def run(args: argparse.Namespace) -> None:
    from sremkit.audit.export import ENDINGS, export
    from sremkit.audit.scoring.cutoff import CutoffRule

    rule = (args.precision, args.fraction, args.threshold)
    counts = export(
        args.folder,
        args.out,
        format=args.format,
        select=args.select,
        cutoff=None if rule == (None, None, None) else CutoffRule(*rule),
        split=args.split,
        formulas=args.formulas,
    )
    print(f"{args.out}: {counts.written:,} of {counts.total:,} rows")
    if counts.decided:
        print(f"{counts.decided:,} rows have decisions of `srem review`, which override the verdicts")
    if counts.without_caption and args.select == "keep":
        lacking = "have a new caption, which this format cannot hold, and are left out"
        print(f"{counts.without_caption:,} of them {lacking}; export .csv or .parquet for them")
    if counts.left is not None and args.select == "keep":
        print(counts.left.sentence())
    if counts.left_out:
        lacking = "they lack an id, or an image and a score where the format needs them"
        print(f"{counts.left_out:,} were left out: {lacking}, or have a name that leads out of its folder")
    if args.select == "keep" and (args.format or ENDINGS.get(args.out.suffix.lower(), "keep-list")) == "keep-list":
        print(f"train on them:  srem train RECIPE --keep {args.out}")
