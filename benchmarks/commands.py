"""Command lines of the benchmarks: shared options, counts that are checked, errors as one sentence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from sremkit.cli.parser import HelpFormatter
from sremkit.errors import UserError
from sremkit.models import BACKBONES
from sremkit.training.distributed import this_process

COUNTS = ("seeds", "kills", "jobs", "batch_size", "images", "steps", "rounds", "threads")  # 1 or more


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m benchmarks.NAME`."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=description, formatter_class=HelpFormatter
    )


def run_command(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], int | None],
    arguments: Sequence[str] | None,
) -> int:
    """Parse, check and run; a user's mistake is printed as a sentence and gives the exit code 2."""
    args = parser.parse_args(arguments)
    try:
        check_arguments(args)
        return run(args) or 0
    except UserError as problem:
        print(f"{parser.prog}: {problem}", file=sys.stderr)
        return problem.exit_code


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse counts below 1, unknown backbones and unknown devices before anything is measured."""
    for name in COUNTS:
        if (value := getattr(args, name, 1)) is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be 1 or more, got {value}")
    for name in getattr(args, "backbones", ()):
        BACKBONES[name]
    if getattr(args, "device", None) is not None:
        args.device = str(this_process(args.device).device)
