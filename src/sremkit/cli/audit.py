"""Find the wrong pairs in your data: a score for each, a noise rate, and a report.

srem audit pairs.csv -o audits/mine
srem audit pairs.parquet --image path --text title --id uid -o audits/mine
srem audit shards/ -o audits/shards --fraction 0.2
srem audit --image-emb images.npy --text-emb texts.npy -o audits/vectors
srem audit --run runs/mine -o audits/run

Pictures and captions go through small encoders that come with `pip install 'sremkit[audit]'`; a matcher is
trained on the pairs themselves, and each pair is judged by one that has not seen it. No clean data are needed.
Rows that cannot be read stay in the result, with the reason. Stopped with Ctrl-C or killed, the same command
goes on where it stopped. Afterwards:

srem export audits/mine --what keep-list -o keep.txt

Collections of millions of pairs are audited shard by shard, in memory that does not grow with their number:

srem audit shards/ -o audits/large --by-shard
srem audit shards/ -o audits/large --by-shard --engine ray
srem audit shards/ -o audits/large --by-shard --task $SLURM_ARRAY_TASK_ID --of 64
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sremkit.cli import by_shard
from sremkit.cli.progress import StageProgress, duration
from sremkit.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from sremkit.audit.audit import Audit

HELP = "find the wrong pairs in your data"
COLUMNS = ("image", "text", "id", "image_root")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pairs", type=Path, nargs="?", metavar="PAIRS", help="a folder, CSV, Parquet, JSON or tar shards"
    )
    parser.add_argument(
        "-o", "--out", type=Path, metavar="DIR", help="folder of the audit (default: NAME-audit)"
    )
    reading = parser.add_argument_group("how the pairs are read")
    reading.add_argument("--image", metavar="COLUMN", help="column of picture paths, in a table")
    reading.add_argument("--text", metavar="COLUMN", help="column of captions, in a table")
    reading.add_argument("--id", metavar="COLUMN", help="column of ids, in a table (default: row numbers)")
    reading.add_argument("--image-root", metavar="DIR", help="where relative picture paths start from")
    reading.add_argument("--format", help="one of `srem list formats`, if it is not recognised")
    reading.add_argument("--split", help="only this split (default: all)")
    instead = parser.add_argument_group("what is there already")
    instead.add_argument("--image-emb", type=Path, metavar="NPY", help="a vector for each row, for its image")
    instead.add_argument("--text-emb", type=Path, metavar="NPY", help="a vector for each row, for its text")
    instead.add_argument("--run", dest="run_folder", type=Path, metavar="RUN", help="a run's training pairs")
    add_choice(parser)
    by_shard.add_arguments(parser)
    working = parser.add_argument_group("how the work is done")
    working.add_argument("--encoder", type=Path, metavar="DIR", help="a CLIP or SigLIP model of transformers")
    working.add_argument("--words", action="store_true", help="also find captions wrong in one word (slower)")
    working.add_argument("--seed", type=int, default=0, help="the same seed gives the same verdicts")
    working.add_argument("--workers", type=int, help="processes for features (default: one for every core)")


def add_choice(parser: argparse.ArgumentParser) -> None:
    """The options that say which pairs are called mismatches."""
    choosing = parser.add_argument_group("which pairs are called mismatches").add_mutually_exclusive_group()
    choosing.add_argument(
        "--precision", type=float, metavar="P", help="so that this share of them is wrong (default: 0.95)"
    )
    choosing.add_argument("--fraction", type=float, metavar="F", help="or this share of all pairs, the worst")
    choosing.add_argument("--threshold", type=float, metavar="T", help="or those with a lower mismatch score")


def run(args: argparse.Namespace) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    if args.workers is not None and args.workers < 0:
        raise UserError("--workers must be 0 or more")
    if by_shard.wanted(args):
        finished = by_shard.run(args, console)
        if finished is not None:
            say_what_was_found(console, *finished)
        return
    audit = open_audit(args)
    rows = audit.source.rows
    console.print(f"{audit.source.pairs.name}: {len(rows):,} rows, {len(audit.source.pairs):,} usable pairs")
    try:
        with StageProgress(console) as progress:
            audit.find(
                args.out,
                precision=args.precision,
                fraction=args.fraction,
                threshold=args.threshold,
                encoder=args.encoder,
                words=args.words,
                seed=args.seed,
                workers=args.workers,
                progress=progress.stage,
                say=console.print,
            )
            report = audit.report()
    except KeyboardInterrupt:
        console.print(f"everything so far is kept in {audit.out}; the same command goes on from here")
        raise
    assert audit.out is not None
    say_what_was_found(console, audit.summary, audit.out, report, audit.was_complete)


def open_audit(args: argparse.Namespace) -> Audit:
    """The audit that the command line speaks of."""
    from sremkit.audit.audit import Audit

    embeddings = (args.image_emb, args.text_emb)
    options: dict[str, Any] = {name: getattr(args, name) for name in COLUMNS}
    options = {name: value for name, value in options.items() if value is not None}
    if args.run_folder is not None:
        if args.pairs is not None or any(embeddings) or options or args.split or args.format:
            raise UserError("a run brings its pairs along; give --run alone")
        return Audit.from_run(args.run_folder)
    if args.pairs is not None:
        features = {"image_features": args.image_emb, "text_features": args.text_emb}
        return Audit.open(args.pairs, format=args.format, split=args.split, **options, **features)
    if all(embeddings):
        return Audit.from_embeddings(*embeddings)
    raise UserError(
        "say what to audit: srem audit pairs.csv, srem audit --image-emb x.npy --text-emb y.npy, "
        "or srem audit --run RUN"
    )


def say_what_was_found(
    console: Console, summary: dict[str, Any], out: Path, report: Path, was_complete: bool
) -> None:
    """The last screen of an audit."""
    if was_complete:
        console.print(f"the audit in {out} was complete already")
    else:
        taken = ", ".join(f"{stage} {duration(s)}" for stage, s in summary["seconds"].items())
        console.print(f"finished: {taken}")
    console.print()
    rate = summary["noise_rate"]
    if rate is not None:
        low, high = (f"{100 * rate[end]:.1f}" for end in ("low", "high"))
        console.print(
            f"about {100 * rate['estimate']:.1f} % of the pairs are wrong (95 % interval: {low} to {high})"
        )
    if summary["note"]:
        console.print(summary["note"])
    expected = summary["expected_precision"]
    trust = "" if expected is None else f"; {100 * expected:.0f} % of these should really be wrong"
    console.print(
        f"{summary['mismatches']:,} of {summary['judged']:,} judged pairs are called mismatches{trust}"
    )
    for reason, count in summary["problems"].items():
        console.print(f"{count:,} could not be judged: {reason}")
    console.print(
        f"\n  {report}  (open it in a browser)\n  {out}/pairs.parquet  (every row with its verdict)\n"
    )
    _say_what_comes_next(console, summary, out)


def _say_what_comes_next(console: Console, summary: dict[str, Any], out: Path) -> None:
    if not summary["judged"]:
        return
    if summary["mismatches"]:
        console.print("next:")
        console.print(
            f"  srem export {out} --what keep-list -o keep.txt   then   srem train RECIPE --keep keep.txt"
        )
        console.print(f"  srem export {out} --what csv -o clean.csv")
        return
    console.print("no pair was called a mismatch; to take the worst tenth of them all the same:")
    console.print(f"  srem export {out} --fraction 0.1 -o keep.txt   (the list without them)")
    console.print(f"  srem export {out} --fraction 0.1 --which drop -o worst.txt   (the list of them)")
