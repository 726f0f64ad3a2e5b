"""What an epoch costs: seconds before training, seconds of training, memory. Every method on the same machine.

Each method runs a warm-up epoch and a few epochs in a process of its own, one after the other, so that no peak of
memory is another method's. The warm-up is left out of the means, as are start-up and validation.

The clock is read at the ends of epochs, when the device has nothing left to do; what was not spent before training is
training, reading batches included. `step_seconds` is what the steps alone report: a device computes on while the host
fetches the next batch, so there it is a lower bound.

What was measured is kept like a grid's cells, so an interrupted table goes on where it stopped; on another machine, or
with another device or other threads, it begins anew, because seconds of two machines are not compared.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sremkit.bench.grid import cell_key, read_row, row_file
from sremkit.bench.methods import method_recipe, name_and_place, that_it_can
from sremkit.bench.own_process import in_own_process
from sremkit.bench.published import published_efficiency
from sremkit.bench.tables import Table
from sremkit.experiment import make_trainer, peak_memory_mb, prepare
from sremkit.recipes import Recipe
from sremkit.training.checkpoint import replace_file
from sremkit.training.clock import now
from sremkit.training.processes import this_process
from sremkit.training.progress import Silent


def measure_efficiency(
    data: str,
    backbone: str,
    methods: Sequence[str],
    folder: Path,
    *,
    epochs: int = 2,
    overrides: Sequence[str] = (),
    on_row: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """One row a method, in their order.

    Args:
        data: first part of the recipes' names, with where the data lies if not in its usual place: "f30k:/path".
        folder: keeps a JSON file a finished row.
    """
    data, located = name_and_place(data)
    length = ["training.warmup_epochs=1", f"training.epochs={epochs}", f"training.decay_after={epochs}"]
    length.append("training.full_precision_steps=0")  # what a long training costs, not how it begins
    recipes = [
        method_recipe(data, backbone, method, [*length, *located, *that_it_can(method, overrides)])
        for method in methods
    ]
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for method, recipe in zip(methods, recipes, strict=True):
        key = _key(recipe)
        if not row_file(folder, key).exists():
            row = in_own_process(measure_recipe, recipe, torch.get_num_threads())
            replace_file(row_file(folder, key), json.dumps(row))
        rows.append({"data": data, "backbone": backbone, "method": method, **read_row(folder, key)})
        on_row(rows[-1])
    return rows


def _key(recipe: Recipe) -> str:
    """Names a row: these settings on this machine and device, whatever "auto" finds, with so many threads."""
    device = describe_device(this_process(recipe.training.device).device)
    measured = f"{cell_key(recipe)} {platform.node()} {torch.get_num_threads()} {device}"
    return hashlib.sha256(measured.encode()).hexdigest()[:16]


def measure_recipe(recipe: Recipe, threads: int) -> dict[str, Any]:
    """Train the recipe and report the means of its epochs after the warm-up."""
    torch.set_num_threads(threads)
    prepared = prepare(recipe)
    before = peak_memory_mb(prepared.process.device)
    history: list[dict[str, Any]] = []
    trainer = make_trainer(prepared, EpochClock(history, prepared.process.device))
    trainer.validate = (
        None  # its cost is nobody's merit, and on the processor it would set the peak of memory
    )
    trainer.run()
    measured = [row for row in history if not row["warmup"]]
    filter_seconds = _mean(measured, "time/filter_seconds")
    train_seconds = _mean(measured, "time/epoch_seconds") - filter_seconds
    return {
        "networks": prepared.method.networks,
        "recorded": recipe.training.recorded,
        "filter_seconds": filter_seconds,
        "train_seconds": train_seconds,
        "step_seconds": _mean(measured, "time/train_seconds"),
        "pairs_per_second": len(prepared.train) / train_seconds,
        "peak_memory_mb": peak_memory_mb(prepared.process.device),
        "memory_before_mb": before,
        "epochs": len(measured),
        "device": describe_device(prepared.process.device),
    }


class EpochClock(Silent):
    """Keeps the epochs' rows with the seconds of each whole epoch, counted from the end of the one before."""

    def __init__(self, history: list[dict[str, Any]], device: torch.device) -> None:
        super().__init__(history)
        self.device = device
        self.ended = self._now()

    def epoch(self, row: dict[str, Any]) -> None:
        before, self.ended = self.ended, self._now()
        super().epoch({**row, "time/epoch_seconds": self.ended - before})

    def _now(self) -> float:
        return now(self.device)


def efficiency_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The paper's table for this machine, with the paper's own below."""
    device = rows[0]["device"]
    columns = ["backbone", "method", "networks", "pre-filtration s", "training s", "both against SREM", "MB"]
    table = Table(f"cost of an epoch on {device}, {rows[0]['data']}", columns, labels=2)
    cost = {(row["backbone"], row["method"]): row["filter_seconds"] + row["train_seconds"] for row in rows}
    lines = []
    for row in rows:
        own, srem = cost[row["backbone"], row["method"]], cost.get((row["backbone"], "srem"))
        ratio = f"{own / srem:.2f}x" if srem else "-"
        seconds = [f"{row['filter_seconds']:.1f}", f"{row['train_seconds']:.1f}"]
        apart = any(other["recorded"] for other in rows) and not row["recorded"]
        method = f"{row['method']} (not recorded)" if apart else row["method"]
        cells = [row["backbone"], method, str(row["networks"]), *seconds, ratio]
        lines.append([*cells, f"{row['peak_memory_mb']:.0f}"])
    table.add_section("measured", lines)
    printed = published_efficiency()
    srem_seconds = next(float(row["train_seconds"]) for row in printed if row["method"] == "srem")
    lines = []
    for row in printed:
        both = (float(row["filter_seconds"]) + float(row["train_seconds"])) / srem_seconds
        cells = ["sgraf", row["method"], "-", row["filter_seconds"], row["train_seconds"], f"{both:.2f}x"]
        lines.append([*cells, row["gpu_memory_mb"]])
    table.add_section(
        f"published: {printed[0]['source']}, {printed[0]['data']}, {printed[0]['machine']}", lines
    )
    return table


def describe_device(device: torch.device) -> str:
    """The machine in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads of {platform.machine()}"


def _mean(rows: Sequence[dict[str, Any]], key: str) -> float:
    return sum(row[key] for row in rows) / len(rows)
