"""The cost of an epoch: seconds before training, seconds of training, memory. Every method on the same machine.

Each method runs a warm-up epoch and a few measured epochs in a subprocess of its own, so that each peak of memory
belongs to one method. Warm-up, start-up and validation are not counted. All time from one end of an epoch to the next
that was not spent before training counts as training, including reading batches. `step_seconds` is what the steps alone
report; on a GPU it is a lower bound, because the device still computes while the host fetches the next batch. Rows are
kept like the cells of a grid; a row belongs to one machine, device and number of threads.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from sremkit.bench.grid import cell_key, read_row, row_file, run_in_subprocess
from sremkit.bench.methods import method_recipe, split_data
from sremkit.bench.published import read_published
from sremkit.bench.tables import Table
from sremkit.config.recipes import Recipe
from sremkit.experiment import make_trainer, peak_memory_mb, prepare
from sremkit.io import atomic_write, digest
from sremkit.training.distributed import this_process
from sremkit.training.metrics import device_time
from sremkit.training.reporters import HistoryReporter


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
    """One row per method.

    Args:
        data: first part of the recipes' names, optionally with the path of the data: "f30k:/path".
        folder: holds a JSON file per finished row.
    """
    data, source = split_data(data)
    length = ["training.warmup_epochs=1", f"training.epochs={epochs}", f"training.decay_after={epochs}"]
    length.append("training.float32_steps=0")  # the cost of a long run, not of its first steps
    settings = [*length, *source, *overrides]
    recipes = [method_recipe(data, backbone, method, settings).recipe for method in methods]
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for method, recipe in zip(methods, recipes, strict=True):
        key = _key(recipe)
        if not row_file(folder, key).exists():
            row = run_in_subprocess(measure_recipe, recipe, torch.get_num_threads())
            atomic_write(row_file(folder, key), json.dumps(row))
        labels = {"data": data, "backbone": backbone, "method": method}
        rows.append({**labels, "cuda_graphs": recipe.training.cuda_graphs is True, **read_row(folder, key)})
        on_row(rows[-1])
    return rows


def _key(recipe: Recipe) -> str:
    """The key of a row: these settings on this machine, the device that "auto" resolves to, this number of threads."""
    device = describe_device(this_process(recipe.training.device).device)
    measured = f"{cell_key(recipe)} {platform.node()} {torch.get_num_threads()} {device}"
    return digest(measured)


def measure_recipe(recipe: Recipe, threads: int) -> dict[str, Any]:
    """Train the recipe; return the means over its epochs after the warm-up."""
    torch.set_num_threads(threads)
    prepared = prepare(recipe)
    before = peak_memory_mb(prepared.process.device)
    history: list[dict[str, Any]] = []
    trainer = make_trainer(prepared, EpochClock(history, prepared.process.device))
    trainer.validate = None  # equal for all methods, and on the CPU it would set the peak of memory
    trainer.run()
    measured = [row for row in history if not row["warmup"]]
    filter_seconds = fmean(row["time/filter_seconds"] for row in measured)
    train_seconds = fmean(row["time/epoch_seconds"] for row in measured) - filter_seconds
    return {
        "networks": prepared.method.networks,
        "cuda_graphs": trainer.settings.cuda_graphs,
        "filter_seconds": filter_seconds,
        "train_seconds": train_seconds,
        "step_seconds": fmean(row["time/train_seconds"] for row in measured),
        "pairs_per_second": len(prepared.train) / train_seconds,
        "peak_memory_mb": peak_memory_mb(prepared.process.device),
        "memory_before_mb": before,
        "epochs": len(measured),
        "device": describe_device(prepared.process.device),
    }


class EpochClock(HistoryReporter):
    """Collects the epochs' rows with the seconds of each epoch, counted from the end of the previous one."""

    def __init__(self, history: list[dict[str, Any]], device: torch.device) -> None:
        super().__init__(history)
        self.device = device
        self.ended = device_time(device)

    def epoch(self, row: dict[str, Any]) -> None:
        before, self.ended = self.ended, device_time(self.device)
        super().epoch({**row, "time/epoch_seconds": self.ended - before})


def efficiency_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The costs on this machine, and the paper's table."""
    device = rows[0]["device"]
    columns = ["backbone", "method", "networks", "pre-filtration s", "training s", "sum against SREM", "MB"]
    table = Table(f"cost of an epoch on {device}, {rows[0]['data']}", columns, labels=2)
    cost = {(row["backbone"], row["method"]): row["filter_seconds"] + row["train_seconds"] for row in rows}
    lines = []
    for row in rows:
        own, srem = cost[row["backbone"], row["method"]], cost.get((row["backbone"], "srem"))
        ratio = f"{own / srem:.2f}x" if srem else "-"
        seconds = [f"{row['filter_seconds']:.1f}", f"{row['train_seconds']:.1f}"]
        eager = any(other["cuda_graphs"] is True for other in rows) and row["cuda_graphs"] is not True
        method = f"{row['method']} (no CUDA graphs)" if eager else row["method"]
        cells = [row["backbone"], method, str(row["networks"]), *seconds, ratio]
        lines.append([*cells, f"{row['peak_memory_mb']:.0f}"])
    table.add_section("measured", lines)
    printed = read_published("published_efficiency.csv")
    srem_seconds = next(float(row["train_seconds"]) for row in printed if row["method"] == "srem")
    lines = []
    for row in printed:
        both = (float(row["filter_seconds"]) + float(row["train_seconds"])) / srem_seconds
        cells = ["sgraf", row["method"], "-", row["filter_seconds"], row["train_seconds"], f"{both:.2f}x"]
        lines.append([*cells, row["gpu_memory_mb"]])
    table.add_section(f"published: {printed[0]['source']}, {printed[0]['data']}, {printed[0]['machine']}", lines)
    return table


def describe_device(device: torch.device) -> str:
    """Name of the GPU, or threads and architecture of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads of {platform.machine()}"
