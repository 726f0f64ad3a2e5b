"""Progress of a training: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class TrainingProgress:
    """Shows steps with the time left, and a line an epoch.

    Args:
        epochs: how many there will be in all.
        title: what is being trained, for the bar.
    """

    def __init__(self, epochs: int, *, title: str, console: Console | None = None) -> None:
        self.epochs = epochs
        self.at_most = False
        self.title = title
        self.console = console or Console(highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._started = time.monotonic()
        self._first: int | None = None  # the epoch it began with: a resumed run does not begin with 0

    def __enter__(self) -> TrainingProgress:
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._task = self._bar.add_task(self.title, total=None, numbers="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, epoch: int, step: int, steps: int, means: dict[str, float]) -> None:
        if self._bar is None or self._task is None:
            return
        # The bar runs over the whole training, so that the time left is that of the run.
        self._bar.update(
            self._task,
            total=steps * self.epochs,
            completed=steps * epoch + step,
            description=f"{self.title}, epoch {epoch + 1}/{self._in_all()}",
            numbers=_brief(means),
        )

    def epoch(self, row: dict[str, Any]) -> None:
        done = row["epoch"] + 1
        elapsed = time.monotonic() - self._started
        self._first = row["epoch"] if self._first is None else self._first
        parts = [f"{self.title} epoch {done}/{self._in_all()}", _brief(row)]
        if "val/rsum" in row:
            parts.append(f"val R_sum {row['val/rsum']:.1f}")
        if "noisy_gradient_ratio" in row and not row["warmup"]:
            parts.append(f"wrong among selected {100 * row['selected_wrong']:.1f} %")
            parts.append(f"noisy gradients {100 * row['noisy_gradient_ratio']:.1f} %")
        if row["warmup"]:
            parts.append("warm-up")
        parts.append(f"{row['time/pairs_per_second']:.0f} pairs/s")
        if self._bar is None and done < self.epochs:
            left = _minutes(elapsed / (done - self._first) * (self.epochs - done))
            parts.append(f"{'at most' if self.at_most else 'about'} {left} left")
        self.console.print("  ".join(part for part in parts if part), soft_wrap=True)

    def warn(self, sentence: str) -> None:
        self.console.print(f"warning: {sentence}", soft_wrap=True)
        sys.stdout.flush()

    def say(self, sentence: str) -> None:
        self.console.print(sentence, soft_wrap=True)

    def expect(self, epochs: int, *, at_most: bool) -> None:
        self.epochs, self.at_most = epochs, at_most

    def _in_all(self) -> str:
        return f"{self.epochs} at most" if self.at_most else str(self.epochs)


class Several:
    """Several reporters as one."""

    def __init__(self, *reporters: Any) -> None:
        self.reporters = [reporter for reporter in reporters if reporter is not None]

    def step(self, epoch: int, step: int, steps: int, means: dict[str, float]) -> None:
        for reporter in self.reporters:
            reporter.step(epoch, step, steps, means)

    def epoch(self, row: dict[str, Any]) -> None:
        for reporter in self.reporters:
            reporter.epoch(row)

    def warn(self, sentence: str) -> None:
        for reporter in self.reporters:
            reporter.warn(sentence)

    def say(self, sentence: str) -> None:
        for reporter in self.reporters:
            reporter.say(sentence)

    def expect(self, epochs: int, *, at_most: bool) -> None:
        for reporter in self.reporters:
            reporter.expect(epochs, at_most=at_most)


class Silent:
    """Keeps the epochs' rows and shows nothing."""

    def __init__(self, history: list[dict[str, Any]]) -> None:
        self.history = history

    def step(self, epoch: int, step: int, steps: int, means: dict[str, float]) -> None: ...

    def epoch(self, row: dict[str, Any]) -> None:
        self.history.append(row)

    def warn(self, sentence: str) -> None: ...

    def say(self, sentence: str) -> None: ...

    def expect(self, epochs: int, *, at_most: bool) -> None: ...


def _brief(means: dict[str, Any]) -> str:
    """The loss, its parts (both directions as one: image→text/text→image) and the share of selected pairs."""
    parts = [f"loss {means['loss']:.3f}"] if "loss" in means else []
    for key, value in means.items():
        name = key.removesuffix("_i2t")
        other = means.get(f"{name}_t2i")
        if name != key and other is not None and name != "selected" and (value or other):
            parts.append(f"{name} {value:.2f}/{other:.2f}")
    if "selected_i2t" in means:
        parts.append(f"selected {50 * (means['selected_i2t'] + means['selected_t2i']):.0f} %")
    return "  ".join(parts)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
