"""What an epoch costs: the clock waits for the device, every method can be measured, data may lie anywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from small_recipes import TINY
from sremkit.bench import efficiency
from sremkit.bench.efficiency import EpochClock, efficiency_table, measure_efficiency, measure_recipe
from sremkit.bench.methods import method_recipe
from sremkit.config.recipes import Recipe
from sremkit.methods import METHODS
from sremkit.training import metrics

LENGTH = ["training.warmup_epochs=1", "training.epochs=2"]


def tiny(method: str) -> Recipe:
    """A method's recipe for a handful of scenes."""
    recipe = method_recipe("scenes", "vse-infty", method, [*TINY, *LENGTH]).recipe
    trusted = 3 if METHODS[method].needs_trusted else 0
    return replace(recipe, data=replace(recipe.data, trusted_images=trusted))


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_can_be_measured(method: str) -> None:
    row = measure_recipe(tiny(method), threads=1)
    assert row["epochs"] == 2
    assert row["networks"] == METHODS[method].networks
    assert 0 < row["step_seconds"] <= row["train_seconds"]


def test_all_of_an_epoch_is_counted_and_nothing_of_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that says 100 after the warm-up, then 7 and 9 seconds more."""
    readings = iter([0.0, 100.0, 107.0, 116.0])
    monkeypatch.setattr(efficiency, "device_time", lambda device: next(readings))
    row = measure_recipe(tiny("infonce"), threads=1)
    assert row["train_seconds"] == pytest.approx(8.0 - row["filter_seconds"])  # (7 + 9) / 2
    pairs = 12 * 5  # of the training scenes
    assert row["pairs_per_second"] == pytest.approx(pairs / row["train_seconds"])


def test_the_clock_is_read_when_the_device_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that still needs two seconds whenever it is waited for."""
    now = [10.0]

    def wait(device: torch.device) -> None:
        now[0] += 2.0

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: now[0])
    history: list[dict[str, Any]] = []
    clock = EpochClock(history, torch.device("cuda"))
    now[0] += 5.0
    clock.epoch({"epoch": 0})
    clock.epoch({"epoch": 1})
    assert [row["time/epoch_seconds"] for row in history] == [7.0, 2.0]
    on_cpu = EpochClock([], torch.device("cpu"))
    assert on_cpu.ended == now[0] == 21.0  # 10, three waits of 2 and 5 seconds of work; none on the CPU


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """The recipes that were measured, by a stand-in for the process that would do it."""
    recipes: list[Recipe] = []

    def here(function: Any, recipe: Recipe, threads: int) -> dict[str, Any]:
        recipes.append(recipe)
        if recipe.method["name"] == "bicro":
            raise KeyboardInterrupt
        numbers = {"filter_seconds": 0.0, "train_seconds": 2.0 * len(recipes), "peak_memory_mb": 10.0}
        return {"networks": 1, "cuda_graphs": recipe.training.cuda_graphs, "device": "one", **numbers}

    monkeypatch.setattr(efficiency, "run_in_subprocess", here)
    return recipes


def test_an_interrupted_table_goes_on_where_it_stopped(
    measured: list[Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure_efficiency("flickr8k", "sgr", ["srem", "bicro", "rcl"], tmp_path)
    first = measure_efficiency("flickr8k", "sgr", ["srem", "rcl"], tmp_path)
    assert [recipe.method["name"] for recipe in measured] == ["srem", "bicro", "rcl"]
    assert [row["train_seconds"] for row in first] == [2.0, 6.0]
    longer = measure_efficiency("flickr8k", "sgr", ["srem"], tmp_path, epochs=3)
    monkeypatch.setattr(efficiency.platform, "node", lambda: "another machine")
    elsewhere = measure_efficiency("flickr8k", "sgr", ["srem"], tmp_path)
    assert [row["train_seconds"] for row in longer + elsewhere] == [8.0, 10.0]


def test_a_method_without_cuda_graphs_is_measured_eagerly_and_marked(measured: list[Recipe], tmp_path: Path) -> None:
    graphs = ["training.cuda_graphs=true"]
    rows = measure_efficiency("flickr8k", "sgr", ["srem", "mscn"], tmp_path, overrides=graphs)
    assert [recipe.training.cuda_graphs for recipe in measured] == [True, False]
    table = efficiency_table(rows).as_text()
    assert "mscn (no CUDA graphs)" in table
    assert "srem (no CUDA graphs)" not in table
    plain = measure_efficiency("flickr8k", "sgr", ["srem", "mscn"], tmp_path)
    assert "no CUDA graphs" not in efficiency_table(plain).as_text()


def test_data_may_lie_in_a_folder_of_ones_own(measured: list[Recipe], tmp_path: Path) -> None:
    rows = measure_efficiency("flickr8k:/my/data", "sgr", ["srem", "mscn"], tmp_path, epochs=3)
    assert [recipe.data.source for recipe in measured] == ["/my/data", "/my/data"]
    assert [recipe.name for recipe in measured] == ["flickr8k-sgr-srem", "flickr8k-sgr-mscn"]
    assert [recipe.training.epochs for recipe in measured] == [3, 3]
    assert [recipe.training.float32_steps for recipe in measured] == [0, 0]
    assert [row["data"] for row in rows] == ["flickr8k", "flickr8k"]


def test_a_row_belongs_to_the_device_that_was_found(measured: list[Recipe], tmp_path: Path, monkeypatch) -> None:
    """The recipe says "auto" on every machine, and a machine may have got a device since."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    measure_efficiency("flickr8k", "sgr", ["srem"], tmp_path)
    assert measured[0].training.device == "auto"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for count, name in ((2, "one kind"), (3, "another kind"), (3, "one kind")):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        measure_efficiency("flickr8k", "sgr", ["srem"], tmp_path)
        assert len(measured) == count
