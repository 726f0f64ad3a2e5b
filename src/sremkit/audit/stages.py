"""Seconds and progress of an audit's stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sremkit.audit.scoring.cross_fit import Progress


def from_zero(progress: Progress | None) -> Progress | None:
    """Report each stage at 0 before its first report, so that a display shows it while its first item is made."""
    if progress is None:
        return None
    seen: set[str] = set()

    def report(stage: str, done: int, total: int) -> None:
        if stage not in seen:
            seen.add(stage)
            progress(stage, 0, total)
        progress(stage, done, total)

    return report


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Measure the seconds of a stage."""
    started = time.monotonic()
    yield
    seconds[stage] = time.monotonic() - started
