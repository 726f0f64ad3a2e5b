"""Observers of batches, and reporters of progress: a console, a history in memory (trackers.py has the others)."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

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
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.objectives import Loss

#: Meaning of the columns of a training's output; parts of the loss that are not named here are explained as such.
MEANINGS = {
    "loss": "mean of the epoch",
    "ranking": "hinge of the selected pairs",
    "energy": "loss that separates the energies of selected and other pairs",
    "complementary": "loss of the negatives, which are right whether or not the pair is",
    "weight": "mean weight of the selected pairs",
    "selected": "share of the pairs taken as clean",
    "val R_sum": "sum of R@1, R@5 and R@10 of both directions on the validation split; 600 is the maximum",
    "wrong among selected": "share of selected pairs that were made wrong, known to evaluation only",
    "noisy gradients": "share of the gradient that comes from wrong pairs",
    "warm-up": "the method does not select pairs yet",
    "pairs/s": "training pairs per second",
}
PART = "part of the loss"


class Observer(Protocol):
    """Sees every batch, such as an evaluation that knows which pairs are wrong."""

    #: Whether `step` may be part of a CUDA graph: all that it does is to change tensors on the device in place. False
    #: where an observer does not say it.
    supports_cuda_graphs: bool

    def step(self, batch: Batch, loss: Loss, pull: Tensor | None) -> None: ...

    def finish_epoch(self) -> dict[str, float]: ...

    def state(self) -> dict[str, float]: ...

    def load_state(self, state: dict[str, float]) -> None: ...


class Reporter:
    """Reports progress. A subclass overrides what it shows."""

    def step(self, epoch: int, step: int, steps: int, means: dict[str, float]) -> None:
        """After a step; `means` are those of the epoch so far."""

    def epoch(self, row: dict[str, Any]) -> None:
        """After an epoch, with its metrics."""

    def warn(self, sentence: str) -> None: ...

    def info(self, sentence: str) -> None: ...


class ReporterList(Reporter):
    """Several reporters as one."""

    def __init__(self, *reporters: Reporter | None) -> None:
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

    def info(self, sentence: str) -> None:
        for reporter in self.reporters:
            reporter.info(sentence)


class HistoryReporter(Reporter):
    """Appends the metrics of each epoch to a list."""

    def __init__(self, history: list[dict[str, Any]]) -> None:
        self.history = history

    def epoch(self, row: dict[str, Any]) -> None:
        self.history.append(row)


class ConsoleReporter(Reporter):
    """A progress bar with the time left on a terminal, and a line per epoch.

    Args:
        epochs: number of epochs of the whole run.
        title: name of the run.
        explain: print the meaning of each column before the first line that has it.
    """

    def __init__(self, epochs: int, *, title: str, explain: bool = False, console: Console | None = None) -> None:
        self.epochs = epochs
        self.title = title
        self.explain = explain
        self.console = console or Console(highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._started = time.monotonic()
        self._first: int | None = None  # the first epoch of this process: a resumed run does not begin with 0
        self._explained: set[str] = set()  # columns

    def __enter__(self) -> ConsoleReporter:
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

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, epoch: int, step: int, steps: int, means: dict[str, float]) -> None:
        if self._bar is None or self._task is None:
            return
        # The bar covers the whole training, so that the time left is that of the run.
        self._bar.update(
            self._task,
            total=steps * self.epochs,
            completed=steps * epoch + step,
            description=f"{self.title}, epoch {epoch + 1}/{self.epochs}",
            numbers="  ".join(_columns(means).values()),
        )

    def epoch(self, row: dict[str, Any]) -> None:
        done = row["epoch"] + 1
        elapsed = time.monotonic() - self._started
        self._first = row["epoch"] if self._first is None else self._first
        columns = _columns(row)
        if "val/rsum" in row:
            columns["val R_sum"] = f"val R_sum {row['val/rsum']:.1f}"
        if not row["warmup"]:
            if "selected_wrong" in row:
                columns["wrong among selected"] = f"wrong among selected {100 * row['selected_wrong']:.1f} %"
            if "noisy_gradient_ratio" in row:
                columns["noisy gradients"] = f"noisy gradients {100 * row['noisy_gradient_ratio']:.1f} %"
        else:
            columns["warm-up"] = "warm-up"
        columns["pairs/s"] = f"{row['time/pairs_per_second']:.0f} pairs/s"
        parts = [f"{self.title} epoch {done}/{self.epochs}", *columns.values()]
        if self._bar is None and done < self.epochs:
            left = _duration(elapsed / (done - self._first) * (self.epochs - done))
            parts.append(f"about {left} left")
        if self.explain:
            self._explain(columns)
        self.console.print("  ".join(parts), soft_wrap=True)

    def warn(self, sentence: str) -> None:
        self.console.print(f"warning: {sentence}", soft_wrap=True)
        sys.stdout.flush()

    def info(self, sentence: str) -> None:
        self.console.print(sentence, soft_wrap=True)

    def _explain(self, columns: dict[str, str]) -> None:
        for column, text in columns.items():
            if column not in self._explained:
                directions = ", image to text/text to image" if "/" in text.removesuffix("pairs/s") else ""
                self.console.print(f"  {column}: {MEANINGS.get(column, PART)}{directions}", soft_wrap=True)
        self._explained.update(columns)


def _columns(means: dict[str, Any]) -> dict[str, str]:
    """The loss, its parts (both directions as i2t/t2i) and the share of selected pairs, by the column's name."""
    columns = {"loss": f"loss {means['loss']:.3f}"} if "loss" in means else {}
    for key, value in means.items():
        name = key.removesuffix("_i2t")
        other = means.get(f"{name}_t2i")
        if name != key and other is not None and name != "selected" and (value or other):
            columns[name] = f"{name} {value:.2f}/{other:.2f}"
    if "selected_i2t" in means:
        columns["selected"] = f"selected {50 * (means['selected_i2t'] + means['selected_t2i']):.0f} %"
    return columns


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
