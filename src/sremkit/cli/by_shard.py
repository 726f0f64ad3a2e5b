"""The part of `srem audit` that goes through large collections shard by shard."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sremkit.cli.progress import StageProgress
from sremkit.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from sremkit.audit.by_shard.plan import Plan

COLUMNS = ("image", "text", "id", "image_root")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    large = parser.add_argument_group("large collections")
    large.add_argument(
        "--by-shard", action="store_true", help="one tar, table or pair of .npy files at a time"
    )
    large.add_argument("--sample", type=int, metavar="N", help="pairs to learn from (default: 200,000)")
    large.add_argument("--engine", choices=("plain", "ray"), help="who does the work (default: plain)")
    large.add_argument("--task", type=int, metavar="I", help="do only every N-th shard, from the I-th on")
    large.add_argument("--of", type=int, metavar="N", help="how many tasks there are")


def wanted(args: argparse.Namespace) -> bool:
    """Whether the audit goes shard by shard; the other options of the group make sense only then."""
    if args.by_shard:
        return True
    for name in ("sample", "engine", "task", "of"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name} is for large collections; add --by-shard, or leave it away")
    return False


def run(args: argparse.Namespace, console: Console) -> tuple[dict[str, Any], Path, Path, bool] | None:
    """Do what can be done now.

    Returns:
        Of a finished audit its summary, its folder, its report, and whether it was finished before.
    """
    from sremkit.audit.by_shard.engines import ENGINES
    from sremkit.audit.by_shard.run import Share, audit_by_shard

    if (args.task is None) != (args.of is None):
        raise UserError("--task and --of go together: --task 0 --of 4 is the first of four tasks")
    share = None if args.task is None else Share(args.task, args.of)
    plan = make_plan(args)
    console.print(f"{len(plan.shards):,} shards, from {plan.shards[0].name} to {plan.shards[-1].name}")
    try:
        with StageProgress(console) as progress:
            outcome = audit_by_shard(
                plan, share=share, engine=ENGINES[args.engine or "plain"], progress=progress.stage
            )
    except KeyboardInterrupt:
        console.print(f"everything so far is kept in {plan.out}; the same command goes on from here")
        raise
    if outcome.summary is None:
        console.print(outcome.missing)
        return None
    return outcome.summary, plan.out, plan.out / "report.html", outcome.was_complete


def make_plan(args: argparse.Namespace) -> Plan:
    """What the command line asks for."""
    from sremkit.audit.by_shard.plan import SAMPLE, Plan
    from sremkit.audit.by_shard.shards import list_embeddings, list_shards
    from sremkit.audit.judging_settings import JudgingSettings
    from sremkit.audit.preparation import Encoders
    from sremkit.audit.stages import Choice

    if args.words:
        raise UserError(
            "--words looks at all pairs at once, and --by-shard never does; leave one of them away"
        )
    embeddings = (args.image_emb, args.text_emb)
    options: dict[str, Any] = {name: getattr(args, name) for name in COLUMNS}
    options = {name: value for name, value in options.items() if value is not None}
    given = [args.pairs is not None, any(embeddings), args.run_folder is not None]
    if sum(given) != 1 or given[2] or any(embeddings) != all(embeddings):
        raise UserError(
            "--by-shard takes a folder or pattern of shards, or --image-emb and --text-emb with folders of .npy "
            "parts, and nothing beside it"
        )
    shards = list_embeddings(*embeddings) if args.pairs is None else list_shards(args.pairs)
    if shards[0].path.suffix.lower() == ".tar" and (args.split or options):
        raise UserError(
            "--split and the names of columns are for tables; name the tar shards that are meant with a pattern, "
            "such as train-{000..099}.tar"
        )
    out = args.out or Path(f"{Path(args.pairs or args.image_emb).stem}-audit")
    return Plan(
        out=out,
        shards=shards,
        encoders=_encoders(args.encoder, Encoders),
        settings=JudgingSettings(seed=args.seed),
        choice=Choice.of(args.precision, args.fraction, args.threshold),
        sample=SAMPLE if args.sample is None else args.sample,
        format=args.format,
        split=args.split,
        options=options,
        workers=args.workers,
    )


def _encoders(folder: Path | None, encoders: Any) -> Any:
    if folder is None:
        return encoders.default()
    from sremkit.features.clip_folder import open_encoders

    return encoders(*open_encoders(folder))
