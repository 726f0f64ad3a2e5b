"""Numbers of the command line, refused with their range before any work begins."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from sremkit.io import MAX_SEED

MAX_COUNT = 1_000_000_000
MAX_WORKERS = 256


def whole_number(*, least: int | None = None, most: int = MAX_COUNT) -> Callable[[str], int]:
    """The type of an option that is a whole number in a range.

    Args:
        least: None where the command itself refuses what is too small.
    """
    words = f"a whole number of at most {most:,}" if least is None else f"a whole number from {least:,} to {most:,}"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:  # no number, or one of thousands of digits
            raise argparse.ArgumentTypeError(f"must be {words}, got {_shown(text)}") from None
        if number > most or (least is not None and number < least):
            raise argparse.ArgumentTypeError(f"must be {words}, got {_shown(text)}")
        return number

    parse.__name__ = "whole number"
    return parse


count = whole_number()
seed = whole_number(least=0, most=MAX_SEED)
large_seed = whole_number(most=MAX_SEED)  # for commands that refuse negative ones themselves
workers = whole_number(most=MAX_WORKERS)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:40]!r}... ({len(text):,} characters)"
