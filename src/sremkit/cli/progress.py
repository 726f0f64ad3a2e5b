"""Progress of long work in stages: a bar with the time left on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console


class StageProgress:
    """Displays the progress of stages, which may alternate. A stage starts with its first report."""

    LINE_SECONDS = 10.0

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Any = None
        self._stages: dict[str, tuple[float, int, Any]] = {}  # start time, items done then, its bar
        self._printed = 0.0

    def __enter__(self) -> Self:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=self.console,
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, name: str, done: int, total: int, remark: str = "") -> None:
        """Report a stage. Items done in its first report are those of an earlier call; `remark` follows the numbers."""
        now = time.monotonic()
        if name not in self._stages:
            if done:
                self.console.print(f"continuing after {done:,} of {total:,} {name}")
            task = None
            if self._bar is not None:
                task = self._bar.add_task(name, total=total, completed=done, rate="")
            self._stages[name] = (now, done, task)
            self._printed = now
            return
        began, first, task = self._stages[name]
        rate = (done - first) / max(now - began, 1e-9)
        suffix = f", {remark}" if remark else ""
        if self._bar is not None:
            self._bar.update(task, completed=done, rate=f"{_per_second(rate)}{suffix}")
        elif now - self._printed >= self.LINE_SECONDS and rate > 0:
            self._printed = now
            left = duration((total - done) / rate)
            self.console.print(f"{name} {done:,}/{total:,}, {_per_second(rate)}, about {left} left{suffix}")


def duration(seconds: float) -> str:
    """Seconds, or minutes from 100 seconds on."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _per_second(rate: float) -> str:
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
