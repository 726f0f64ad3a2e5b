"""The bench commands from the command line, on scenes at their smallest."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from small_recipes import AS_OPTIONS, TINY
from sremkit.bench import figures
from sremkit.cli.main import main
from sremkit.config.recipes import load_recipe


def test_methods_then_curves(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "grid.csv"
    command = [
        "bench",
        "methods",
        "--data",
        "scenes",
        "--methods",
        "srem,infonce",
        "--noise",
        "0.6",
        "--seeds",
        "1",
    ]
    assert main([*command, "-o", str(out), "--table", str(tmp_path / "t.md"), *AS_OPTIONS]) == 0
    assert "| vse-infty | 0.6 | srem | 1 | 1+1 |" in (tmp_path / "t.md").read_text()
    assert main(["bench", "figures", "curves", "--from", str(out), "-o", str(tmp_path / "f")]) == 0
    assert (tmp_path / "f" / "curves-vse-infty-0.6.png").stat().st_size > 10_000
    svg = (tmp_path / "f" / "curves-vse-infty-0.6.svg").read_text()
    assert "infonce" in svg
    capsys.readouterr()
    assert main(["bench", "figures", "curves", "--from", str(out), "--noise", "0.2"]) == 2
    assert "has no cells of vse-infty at noise 0.2" in capsys.readouterr().err


def test_ablation(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "ablation.csv"
    command = ["bench", "ablation", "--recipe", "scenes-srem", "--seeds", "1", "-o", str(out)]
    assert main([*command, *AS_OPTIONS]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["rectification"] for row in rows] == ["False"] * 4 + ["True"]
    assert "40% noise" in capsys.readouterr().out


def test_efficiency_counts_training_and_not_validation(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    command = ["bench", "efficiency", "--data", "scenes", "--methods", "srem", "--epochs", "1"]
    small = [part for setting in TINY if "epochs" not in setting for part in ("--set", setting)]
    assert main([*command, "-o", str(tmp_path / "e.csv"), *small]) == 0
    with (tmp_path / "e.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["train_seconds"]) > 0
    assert float(row["filter_seconds"]) < 0.1
    assert "published" in capsys.readouterr().out


def test_energies_are_taken_at_four_stages(tmp_path: Path) -> None:
    recipe = load_recipe("scenes-srem", [*TINY, "training.epochs=4"])
    prepared, energies = figures.energies_in_training(recipe)
    assert list(energies) == [0.0, 0.2, 0.6, 1.0]
    assert all(len(values) == len(prepared.train) for values in energies.values())
    assert not np.allclose(energies[0.0], energies[1.0])
    files = figures.draw_energies(energies, prepared.is_noisy, tmp_path / "energies")
    assert [file.suffix for file in files] == [".png", ".svg"]
    assert "after 60% of training" in files[1].read_text()
    files = figures.draw_examples(prepared.train, energies[1.0], prepared.is_noisy, tmp_path / "examples", count=3)
    assert files[0].stat().st_size > 10_000
