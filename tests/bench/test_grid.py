"""The grid keeps finished cells and computes the missing ones."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from processes import is_alive
from small_recipes import TINY, tiny
from sremkit.bench import grid
from sremkit.bench.differences import NOTE
from sremkit.bench.methods import method_cells, methods_table, run_methods
from sremkit.config.recipes import load_recipe
from sremkit.experiment import training_run


def test_a_key_follows_the_settings_and_not_the_name() -> None:
    assert grid.cell_key(tiny()) == grid.cell_key(tiny())
    assert grid.cell_key(tiny()) != grid.cell_key(tiny(training__seed=1))
    renamed = load_recipe("scenes-srem", [*TINY, "name=other"])
    assert grid.cell_key(tiny()) == grid.cell_key(renamed)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_how_bf16_begins_names_a_cell_only_where_there_is_bf16(precision: str) -> None:
    keys = {grid.cell_key(tiny(training__precision=precision, training__float32_steps=steps)) for steps in (0, 250)}
    assert len(keys) == (2 if precision == "bf16" else 1)


def test_a_key_does_not_follow_the_order_of_the_settings() -> None:
    one = tiny(method__margin=0.3, method__threshold=0.1)
    other = tiny(method__threshold=0.1, method__margin=0.3)
    assert list(one.method) != list(other.method)
    assert grid.cell_key(one) == grid.cell_key(other)
    swapped = tiny(method__threshold=0.3, method__margin=0.1)
    assert grid.cell_key(one) != grid.cell_key(swapped)


def test_finished_cells_are_kept_and_the_order_is_that_of_the_cells(tmp_path: Path, monkeypatch) -> None:
    cells = [({"seed": 1}, tiny(training__seed=1)), ({"seed": 0}, tiny())]
    first = grid.run_grid(cells[:1], tmp_path)
    ran = []
    run_cell = grid.run_cell
    monkeypatch.setattr(grid, "run_cell", lambda recipe, *a: ran.append(recipe.training.seed) or run_cell(recipe))
    rows = grid.run_grid(cells, tmp_path)
    assert ran == [0]
    assert [row["seed"] for row in rows] == [1, 0]
    assert rows[0] == first[0]
    assert rows[0]["test_rsum"] > 0
    assert rows[0]["noise_protocol"] == "caption"
    assert len(rows[0]["history"]) == 2


def test_the_memory_of_a_cell_is_that_of_its_training(monkeypatch) -> None:
    peak = [300.0]  # before the first validation; each makes it larger
    monkeypatch.setattr(grid, "peak_memory_mb", lambda device: peak[-1])
    validation_metrics = training_run.validation_metrics

    def validate(*args):
        peak.append(peak[-1] + 9000.0 if len(peak) > 1 else 500.0)
        return validation_metrics(*args)

    monkeypatch.setattr(training_run, "validation_metrics", validate)
    assert grid.run_cell(tiny())["peak_memory_mb"] == 500.0
    assert peak == [300.0, 500.0, 9500.0]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_cell_is_tested_in_the_precision_of_its_training(monkeypatch, precision: str) -> None:
    seen = []
    for name in ("score_matrix", "in_batch_scores"):
        plain = getattr(grid, name)
        monkeypatch.setattr(
            grid, name, lambda *a, plain=plain: seen.append(torch.is_autocast_enabled("cpu")) or plain(*a)
        )
    grid.run_cell(tiny(training__precision=precision))
    assert seen == [precision == "bf16"] * 2


def test_a_cell_that_fails_takes_no_other_cells_row_with_it(tmp_path: Path, monkeypatch) -> None:
    """Threads for processes, and results in the order of the cells: the second and fourth of five fail."""

    def run_cell(recipe: grid.Recipe, *rest: object) -> dict[str, Any]:
        if recipe.training.seed % 2:
            raise ValueError(f"seed {recipe.training.seed} is odd")
        return {"test_rsum": float(recipe.training.seed)}

    monkeypatch.setattr(grid, "run_cell", run_cell)
    monkeypatch.setattr(grid, "ProcessPoolExecutor", lambda workers, *_, **__: ThreadPoolExecutor(workers))
    monkeypatch.setattr(grid, "as_completed", list)
    cells = [({"seed": seed}, tiny(training__seed=seed)) for seed in range(5)]
    reported: list[int] = []
    with pytest.raises(ValueError, match="seed 1 is odd"):
        grid.run_grid(cells, tmp_path, jobs=2, on_row=lambda row: reported.append(row["seed"]))
    assert reported == [0, 2, 4]
    kept = {seed for seed, (_, recipe) in enumerate(cells) if (tmp_path / f"{grid.cell_key(recipe)}.json").exists()}
    assert kept == {0, 2, 4}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("context", ["grid._cell_context()", "grid.get_context('spawn')"])
def test_a_subprocess_ends_with_its_parent_even_if_that_is_killed(tmp_path: Path, context: str) -> None:
    file = tmp_path / "process"
    call = f"grid._run_in({context}, os.system, 'echo $PPID > {file}.part; mv {file}.part {file}; exec sleep 20')"
    parent = subprocess.Popen([sys.executable, "-c", f"import os; from sremkit.bench import grid; {call}"])
    wait_for(file.exists, seconds=60)
    worker = file.read_text().strip()
    assert is_alive(worker)
    parent.kill()
    parent.wait()
    wait_for(lambda: not is_alive(worker), seconds=30)


def test_cells_are_forked_only_while_the_environment_is_that_of_the_server(monkeypatch) -> None:
    monkeypatch.setattr(grid, "_server_environment", None)
    forked = "forkserver" if sys.platform == "linux" else "spawn"
    assert [grid._cell_context().get_start_method() for _ in range(2)] == [forked] * 2
    monkeypatch.setenv("SREMKIT_KERNELS", "plain")  # read at import
    assert grid._cell_context().get_start_method() == "spawn"


def wait_for(condition: Callable[[], bool], *, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.1)


def test_the_best_model_is_tested_and_not_the_last(monkeypatch) -> None:
    def weights(matcher: Any) -> dict[str, Tensor]:
        return {name: t.clone() for name, t in matcher.state_dict().items()}

    validated: list[dict[str, Tensor]] = []
    tested: list[dict[str, Tensor]] = []
    results = iter([30.0, 50.0, 40.0])
    monkeypatch.setattr(
        training_run,
        "validation_metrics",
        lambda m, *_: validated.append(weights(m)) or {"rsum": next(results)},
    )
    for name in ("score_matrix", "in_batch_scores"):
        plain = getattr(grid, name)
        monkeypatch.setattr(grid, name, lambda m, *a, plain=plain: tested.append(weights(m)) or plain(m, *a))
    row = grid.run_cell(tiny(training__epochs=2))
    assert (row["val_rsum"], row["last_val_rsum"], row["best_epoch"]) == (50.0, 40.0, 2)
    assert len(tested) == 2
    for one in tested:
        assert all(torch.equal(t, validated[1][name]) for name, t in one.items())
        assert not all(torch.equal(t, validated[2][name]) for name, t in one.items())


def test_the_methods_bench_writes_csv_and_a_table(tmp_path: Path) -> None:
    cells = method_cells("scenes", ["vse-infty"], ["infonce", "srem"], [0.0, 0.4], [0, 1], overrides=TINY)
    assert len(cells) == 8
    rows = run_methods(cells, tmp_path / "bench.csv")
    with (tmp_path / "bench.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == 8
    assert "history" not in table[0]
    assert float(table[3]["test_rsum"]) == pytest.approx(rows[3]["test_rsum"], rel=1e-5)
    table = methods_table(rows, title="t")
    ((heading, lines),) = table.sections
    assert heading == "single models"
    assert [line[:5] for line in lines] == [
        ["vse-infty", rate, method, "2", "1+1"] for rate in ("0", "0.4") for method in ("infonce", "srem")
    ]
    assert "±" in lines[-1][-1]
    assert table.notes == ["Epochs: every method trained for 2, warm-up included.", NOTE]
    assert len(list((tmp_path / "bench.cells").iterdir())) == 8
    json.loads(next((tmp_path / "bench.cells").iterdir()).read_text())


def test_cuda_graphs_are_used_for_the_methods_that_support_them() -> None:
    cells = method_cells(
        "flickr8k",
        ["sgr"],
        ["ncr", "mscn"],
        [0.4],
        [0],
        overrides=["training.cuda_graphs=true", "training.max_grad_norm=1.0"],
    )
    assert [recipe.training.cuda_graphs for _, recipe in cells] == [True, False]
    assert [recipe.training.max_grad_norm for _, recipe in cells] == [1.0, 1.0]
