"""Where the time of an epoch goes: replays of CUDA graphs, captures, eager steps, everything else.

    python -m benchmarks.epoch_time flickr8k-sgr-srem flickr8k-dual-srem --set training.warmup_epochs=2
    python -m benchmarks.epoch_time f30k-sgr-srem --set data.source=data/f30k_precomp --graphs keep
    python -m benchmarks.epoch_time flickr8k-dual-rcl --profile

Trains a recipe as `srem train` does, without a run folder. With "keep" the graphs of an epoch serve the next one as
long as nothing that they depend on changes; with "recapture" each epoch captures its own. "Replays" is the time of the
device within graphs, "captures" and "eager steps" are seconds of the host with the device waited for, and "other" is
what is left of the training seconds of the epoch: batches that were not ready, metrics, observers, averaged weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.commands import make_parser, run_command
from sremkit.bench.grid import write_csv
from sremkit.bench.tables import Table
from sremkit.config.recipes import Recipe, load_recipe
from sremkit.errors import UserError
from sremkit.experiment import make_trainer, prepare
from sremkit.methods import Method
from sremkit.training.cuda_graphs import GraphedSteps
from sremkit.training.reporters import Reporter

GRAPHS = ("keep", "recapture")
COLUMNS = {
    "seconds": ("s an epoch", ".2f"),
    "replays": ("replays", ".2f"),
    "num_replays": ("number", "d"),
    "captures": ("captures", ".2f"),
    "num_captures": ("number", "d"),
    "eager": ("eager steps", ".2f"),
    "num_eager": ("number", "d"),
    "other": ("other", ".2f"),
    "validation": ("validation", ".2f"),
    "val_rsum": ("R_sum", ".1f"),
}


@dataclass
class Times:
    """Seconds and numbers of calls of one epoch."""

    captures: list[float] = field(default_factory=list)
    eager: list[float] = field(default_factory=list)
    replays: list[tuple[Any, Any]] = field(default_factory=list)  # events before and after

    def row(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """The row of the epoch with these metrics; nothing is left for the next one."""
        torch.cuda.synchronize()
        replays = sum(before.elapsed_time(after) for before, after in self.replays) / 1000
        row = {
            "seconds": metrics["time/train_seconds"] + metrics.get("time/compile_seconds", 0.0),
            "replays": replays,
            "num_replays": len(self.replays),
            "captures": sum(self.captures),
            "num_captures": len(self.captures),
            "eager": sum(self.eager),
            "num_eager": len(self.eager),
            "validation": metrics["time/validate_seconds"],
            "val_rsum": metrics["val/rsum"],
        }
        row["other"] = row["seconds"] - sum(row[name] for name in ("replays", "captures", "eager"))
        for calls in (self.captures, self.eager, self.replays):
            calls.clear()
        return row


class EpochReporter(Reporter):
    """Prints a row after each epoch, and what the training says."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self.rows: list[dict[str, Any]] = []

    def epoch(self, row: dict[str, Any]) -> None:
        self.rows.append({"epoch": row["epoch"] + 1, **self.times.row(row)})
        shown = ", ".join(f"{name} {value:.2f}" for name, value in self.rows[-1].items())
        print(f"  {shown}", flush=True)

    def info(self, sentence: str) -> None:
        print(f"  {sentence}", flush=True)

    warn = info


@contextmanager
def timed_graphs(times: Times, *, recapture: bool) -> Iterator[None]:
    """Inside, graphed steps report their times."""
    patched: list[tuple[type, str, Any]] = []

    def wrap(owner: type, name: str, make: Callable[[Any], Any]) -> None:
        patched.append((owner, name, getattr(owner, name)))
        setattr(owner, name, make(getattr(owner, name)))

    def waited_for(calls: list[float]) -> Callable[[Any], Any]:
        def make(inner: Any) -> Any:
            def call(*args: Any) -> Any:
                torch.cuda.synchronize()
                started = time.perf_counter()
                result = inner(*args)
                torch.cuda.synchronize()
                calls.append(time.perf_counter() - started)
                return result

            return call

        return make

    def replayed(inner: Any) -> Any:
        def call(graph: Any) -> None:
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            inner(graph)
            after.record()
            times.replays.append((before, after))

        return call

    try:
        wrap(GraphedSteps, "_capture", waited_for(times.captures))
        wrap(GraphedSteps, "_run_eagerly", waited_for(times.eager))
        wrap(torch.cuda.CUDAGraph, "replay", replayed)
        if recapture:
            for owner in _method_classes():
                wrap(owner, "graph_key", lambda inner: lambda method: None)
        yield
    finally:
        for owner, name, inner in reversed(patched):
            setattr(owner, name, inner)


def _method_classes() -> list[type]:
    """The classes of methods that define what their graphs depend on."""
    found: list[type] = []
    waiting: list[type] = [Method]
    while waiting:
        owner = waiting.pop()
        waiting += owner.__subclasses__()
        if "graph_key" in vars(owner):
            found.append(owner)
    return found


def run_recipe(recipe: Recipe, *, recapture: bool, profile: bool) -> list[dict[str, Any]]:
    """Train the recipe; a row for each epoch."""
    prepared = prepare(recipe)
    if prepared.process.device.type != "cuda":
        raise UserError("CUDA graphs need a CUDA device, and this machine has none")
    times = Times()
    reporter = EpochReporter(times)
    trainer = make_trainer(prepared, reporter)
    with timed_graphs(times, recapture=recapture):
        if profile:
            activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities) as profiler:
                trainer.run()
            for by in ("self_cpu_time_total", "self_cuda_time_total"):
                print(profiler.key_averages().table(sort_by=by, row_limit=30, max_name_column_width=60), flush=True)
        else:
            trainer.run()
    return reporter.rows


def run(args: argparse.Namespace) -> None:
    columns = ["recipe", "graphs", "epoch", *(name for name, _ in COLUMNS.values())]
    table, rows = Table("seconds of an epoch", columns, labels=3), []
    for name in args.recipes:
        lines = []
        for graphs in args.graphs:
            print(f"{name}, {graphs}", flush=True)
            recipe = load_recipe(name, overrides=args.overrides)
            for row in run_recipe(recipe, recapture=graphs == "recapture", profile=args.profile):
                rows.append({"recipe": name, "graphs": graphs, **row})
                numbers = [format(row[key], form) for key, (_, form) in COLUMNS.items()]
                lines.append([name, graphs, str(row["epoch"]), *numbers])
        table.add_section(name, lines)
    print(table.as_text())
    if args.out is not None:
        write_csv(rows, args.out)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("epoch_time", __doc__)
    parser.add_argument("recipes", nargs="+", metavar="RECIPE", help="names of shipped recipes, or files")
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS), help="ways to compare")
    parser.add_argument("-o", "--out", type=Path, help="CSV file to write, with a row for each epoch")
    parser.add_argument("--profile", action="store_true", help="print the profiler's tables of operations")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="change all recipes"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(build_parser(), run, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
