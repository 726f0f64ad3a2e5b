"""Find the mismatched pairs in your data: a score for each pair, the noise rate, and a report.

srem audit pairs.csv -o audits/mine
srem audit pairs.parquet --image path --text title --id uid -o audits/mine
srem audit shards/ -o audits/shards --fraction 0.2
srem audit --image-emb images.npy --text-emb texts.npy -o audits/vectors
srem audit --run runs/mine -o audits/run
srem audit pairs.csv -o audits/mine --then-train

Small encoders that come with `pip install 'sremkit[audit]'` embed images and captions. Models are trained on the
pairs themselves, and each pair is scored by models that were not trained on it. No clean data are needed. Rows that
cannot be read stay in the result, with the reason. After Ctrl-C or a kill, the same command continues. Then:

srem export audits/mine -o keep.txt

Collections of millions of pairs are audited shard by shard, in memory that does not grow with their number:

srem audit shards/ -o audits/large --sharded
srem audit shards/ -o audits/large --sharded --engine ray
srem audit shards/ -o audits/large --sharded --task $SLURM_ARRAY_TASK_ID --of 64
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sremkit.cli import numbers
from sremkit.cli.progress import StageProgress, duration
from sremkit.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from sremkit.audit.audit import Audit
    from sremkit.audit.sharded.plan import ShardPlan

HELP = "find the mismatched pairs in your data"
COLUMNS = ("image", "text", "id", "image_root")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pairs", type=Path, nargs="?", metavar="PAIRS", help="a folder, CSV, Parquet, JSON or tar shards"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="folder of the audit (default: NAME-audit)")
    add_reading(parser).add_argument(
        "--run", dest="run_folder", type=Path, metavar="RUN", help="a run's training pairs"
    )
    add_cutoff(parser)
    large = parser.add_argument_group("large collections")
    large.add_argument("--sharded", action="store_true", help="one tar, table or pair of .npy files at a time")
    large.add_argument(
        "--max-train-pairs", type=numbers.count, metavar="N", help="pairs to train on (default: 200,000)"
    )
    large.add_argument("--engine", choices=("local", "ray"), help="this process or Ray (default: local)")
    large.add_argument("--task", type=numbers.count, metavar="I", help="work on the shards with number %% N = I only")
    large.add_argument("--of", type=numbers.count, metavar="N", help="number of tasks")
    working = parser.add_argument_group("scoring")
    pretrained = "a CLIP or SigLIP model of transformers: its folder, a run that fine-tuned it, or its name on the hub"
    working.add_argument("--encoder", metavar="RUN_OR_DIR", help=pretrained)
    working.add_argument(
        "--then-train", action="store_true", help="also train small models with and without the flagged pairs"
    )
    working.add_argument("--seed", type=numbers.seed, default=0, help="the same seed gives the same scores")
    working.add_argument(
        "--reuse",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="an audit or features of the same images and captions; may be repeated",
    )
    working.add_argument("--workers", type=numbers.workers, help="processes for features (default: one for each core)")


def add_reading(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The options that say how pairs are read; returns the group for those that exist already."""
    add_columns(parser).add_argument("--split", help="only this split (default: all)")
    existing = parser.add_argument_group("embeddings, or the pairs of a run")
    existing.add_argument("--image-emb", type=Path, metavar="NPY", help="an image vector for each row")
    existing.add_argument("--text-emb", type=Path, metavar="NPY", help="a text vector for each row")
    return existing


def add_columns(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The options of a table's columns and of the format; returns their group."""
    reading = parser.add_argument_group("reading the pairs")
    reading.add_argument("--image", metavar="COLUMN", help="column of image paths, in a table")
    reading.add_argument("--text", metavar="COLUMN", help="column of captions, in a table")
    reading.add_argument("--id", metavar="COLUMN", help="column of ids, in a table (default: row numbers)")
    reading.add_argument("--image-root", metavar="DIR", help="folder that relative image paths start from")
    reading.add_argument("--format", help="one of `srem list formats`, if it is not recognised")
    return reading


def column_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_columns` that were given, the format aside, as readers take them."""
    options = {name: getattr(args, name) for name in COLUMNS}
    return {name: value for name, value in options.items() if value is not None}


def add_cutoff(parser: argparse.ArgumentParser) -> None:
    """The options of the cutoff between mismatches and other pairs."""
    group = parser.add_argument_group("which pairs are flagged as mismatches").add_mutually_exclusive_group()
    group.add_argument(
        "--precision",
        type=float,
        metavar="P",
        help="flag as many pairs as possible with at least this expected precision (default: 0.95)",
    )
    group.add_argument("--fraction", type=float, metavar="F", help="or this fraction, with the lowest scores")
    group.add_argument("--threshold", type=float, metavar="T", help="or pairs with a lower match_probability")


def run(args: argparse.Namespace) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    if args.workers is not None and args.workers < 0:
        raise UserError("--workers must be 0 or more")
    if args.sharded:
        _run_sharded(args, console)
        return
    for name in ("max_train_pairs", "engine", "task", "of"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} is for large collections; add --sharded, or leave it out")
    audit = open_audit(args)
    pairs, rows = audit.source.pairs, audit.source.rows
    console.print(f"{pairs.name}: {len(rows):,} rows, {len(pairs):,} usable pairs")
    try:
        with StageProgress(console) as progress:
            audit.find(
                args.out,
                precision=args.precision,
                fraction=args.fraction,
                threshold=args.threshold,
                encoder=args.encoder,
                seed=args.seed,
                workers=args.workers,
                reuse=args.reuse,
                progress=progress.stage,
                notify=console.print,
            )
            if args.then_train:
                audit.compare_training(workers=args.workers, progress=progress.stage)
            audit.report()
    except KeyboardInterrupt:
        console.print(f"everything so far is kept in {audit.out}; the same command continues from here")
        raise
    assert audit.out is not None
    print_summary(console, audit.summary, audit.out, was_complete=audit.was_complete)


def open_audit(args: argparse.Namespace) -> Audit:
    """The audit of the pairs that the arguments name."""
    from sremkit.audit.audit import Audit

    embeddings, options = (args.image_emb, args.text_emb), column_options(args)
    if args.run_folder is not None:
        if args.pairs is not None or any(embeddings) or options or args.split or args.format:
            raise UserError("a run has its own pairs; give --run alone")
        return Audit.from_run(args.run_folder)
    if args.pairs is not None:
        features = {"image_features": args.image_emb, "text_features": args.text_emb}
        return Audit.open(args.pairs, format=args.format, split=args.split, **options, **features)
    if all(embeddings):
        _refuse_columns(args, options)
        return Audit.from_embeddings(*embeddings)
    raise UserError(
        "name the pairs to audit: srem audit pairs.csv, srem audit --image-emb x.npy --text-emb y.npy, "
        "or srem audit --run RUN"
    )


def _run_sharded(args: argparse.Namespace, console: Console) -> None:
    from sremkit.audit.sharded.run import ENGINES, Share, audit_shards

    if (args.task is None) != (args.of is None):
        raise UserError("--task and --of go together: --task 0 --of 4 is the first of four tasks")
    share = None if args.task is None else Share(args.task, args.of)
    plan = make_plan(args)
    console.print(f"{len(plan.shards):,} shards, from {plan.shards[0].name} to {plan.shards[-1].name}")
    try:
        with StageProgress(console) as progress:
            result = audit_shards(plan, share=share, engine=ENGINES[args.engine or "local"], progress=progress.stage)
    except KeyboardInterrupt:
        console.print(f"everything so far is kept in {plan.out}; the same command continues from here")
        raise
    if result.summary is None:
        console.print(result.missing)
    else:
        print_summary(console, result.summary, plan.out, was_complete=result.was_complete)


def make_plan(args: argparse.Namespace) -> ShardPlan:
    """The plan of a sharded audit."""
    from sremkit.audit.embed import Encoders
    from sremkit.audit.scoring.cutoff import CutoffRule
    from sremkit.audit.scoring.types import ScoringSettings
    from sremkit.audit.sharded.plan import MAX_TRAIN_PAIRS, ShardPlan, list_embeddings, list_shards

    if args.reuse:
        raise UserError("--reuse is for audits without --sharded; leave out one of them")
    if args.then_train:
        raise UserError("--then-train needs all pairs in memory, and --sharded holds one shard; leave out one of them")
    embeddings, options = (args.image_emb, args.text_emb), column_options(args)
    sources = [args.pairs is not None, any(embeddings), args.run_folder is not None]
    if sum(sources) != 1 or args.run_folder is not None or any(embeddings) != all(embeddings):
        raise UserError(
            "--sharded takes either a folder or pattern of shards, or --image-emb and --text-emb with folders of "
            ".npy files"
        )
    if args.pairs is None:
        _refuse_columns(args, options)
    shards = list_embeddings(*embeddings) if args.pairs is None else list_shards(args.pairs)
    if shards[0].path.suffix.lower() == ".tar" and (args.split or options):
        raise UserError(
            "--split and the names of columns are for tables; select tar shards with a pattern, such as "
            "train-{000..099}.tar"
        )
    return ShardPlan(
        out=args.out or Path(f"{Path(args.pairs or args.image_emb).stem}-audit"),
        shards=shards,
        encoders=Encoders.open(args.encoder),
        settings=ScoringSettings(seed=args.seed, zero_shot=args.encoder is not None and args.pairs is not None),
        cutoff=CutoffRule.of(args.precision, args.fraction, args.threshold),
        max_train_pairs=MAX_TRAIN_PAIRS if args.max_train_pairs is None else args.max_train_pairs,
        format=args.format,
        split=args.split,
        options=options,
        workers=args.workers,
    )


def _refuse_columns(args: argparse.Namespace, options: dict[str, Any]) -> None:
    if args.split or args.format or options:
        raise UserError(
            "--image-emb and --text-emb without a table have no columns, splits or format; leave those options out, or "
            "name the table as well: srem audit pairs.csv --image-emb x.npy --text-emb y.npy"
        )


def training_lines(summary: dict[str, Any]) -> list[str]:
    """What `--then-train` found, for the terminal."""
    if "training" not in summary:
        return []
    training = summary["training"]
    if training is None:
        return ["training with and without the flagged pairs was not compared: too few pairs, or none is flagged"]
    lines = [f"recall on {training['test_images']:,} held-out images, mean of {training['seeds']} seeds:"]
    for name, label in (("all", "trained on all pairs"), ("kept", "trained on the kept pairs")):
        of = training[name]
        lines.append(
            f"  {label} ({of['pairs']:,}): R_sum {of['rsum']:.1f} ± {of['rsum_std']:.1f}, image to text R@1 "
            f"{of['i2t/R@1']:.1f}, text to image R@1 {of['t2i/R@1']:.1f}"
        )
    return lines


def print_summary(console: Console, summary: dict[str, Any], out: Path, *, was_complete: bool) -> None:
    """The last screen of an audit: the figures, the files, and the next commands."""
    if was_complete:
        console.print(f"the audit in {out} was complete already")
    else:
        elapsed = ", ".join(f"{stage} {duration(s)}" for stage, s in summary["seconds"].items())
        console.print(f"finished: {elapsed}")
    console.print()
    rate, expected = summary["noise_rate"], summary["expected_precision"]
    if rate is not None:
        low, high = (f"{100 * rate[end]:.1f}" for end in ("low", "high"))
        console.print(f"estimated noise rate: {100 * rate['estimate']:.1f} % (95 % interval: {low} to {high})")
        if summary.get("rate_counts"):
            console.print(summary["rate_counts"])
    if summary["note"]:
        console.print(summary["note"])
    precision = "" if expected is None else f", with an expected precision of {100 * expected:.0f} %"
    console.print(
        f"{summary['mismatches']:,} of {summary['scored']:,} scored pairs are flagged as mismatches{precision}"
    )
    for line in training_lines(summary):
        console.print(line)
    if summary.get("remaining") is not None:
        console.print(summary["remaining"]["sentence"])
    for reason, count in summary["problems"].items():
        console.print(f"{count:,} could not be scored: {reason}")
    console.print(
        f"\n  {out / 'report.html'}  (open it in a browser)\n  {out}/pairs.parquet  (every row with its verdict)\n"
    )
    if not summary["scored"]:
        return
    if summary["mismatches"]:
        console.print("next:")
        console.print(f"  srem review {out}   (decide in the browser)")
        console.print(f"  srem export {out} -o keep.txt   then   srem train RECIPE --keep keep.txt")
        console.print(
            f"  srem export {out} --select all -o verdicts.csv   (your columns with score, verdict, better caption)"
        )
        return
    console.print("no pair is flagged as a mismatch; to flag the tenth with the lowest scores anyway:")
    console.print(f"  srem export {out} --fraction 0.1 -o keep.txt   (the list without them)")
    console.print(f"  srem export {out} --fraction 0.1 --select drop -o lowest.txt   (the list of them)")
