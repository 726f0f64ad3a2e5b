"""The loader's bench runs the same steps on the same batches, wherever they come from."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import loader
from benchmarks.steps import StepBenchmark

TINY = ["scan-t2i", "--small", "--device", "cpu", "--batch-size", "4", "--images", "7"]
TINY += ["--steps", "5", "--threads", "1", "--rounds", "1"]


def test_every_mode_has_a_row_and_nothing_is_left_on_disk(tmp_path: Path, capsys) -> None:
    out, folder = tmp_path / "new" / "loader.csv", tmp_path / "made"
    folder.mkdir()
    assert loader.main([*TINY, "--folder", str(folder), "-o", str(out)]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["mode"] for row in rows] == [
        "on-device",
        "prefetch",
        "processes",
        "synchronous",
        "prefetch, no step",
    ]
    assert [float(row["ratio"]) for row in rows[:1]] == [1.0]
    for row in rows:
        assert float(row["pairs_per_second"]) == pytest.approx(4 / float(row["seconds"]), rel=1e-3)
    for row in rows[1:4]:
        expected = float(rows[0]["seconds"]) / float(row["seconds"])
        assert float(row["ratio"]) == pytest.approx(expected, rel=1e-3)
    assert list(folder.iterdir()) == []
    assert "5 steps" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_all_modes_give_the_same_batches(tmp_path: Path, dtype: str) -> None:
    args = loader.build_parser().parse_args([*TINY, "--format", dtype])
    bench = StepBenchmark(args)
    pairs = loader.make_pairs(tmp_path, 7, dtype=dtype, small=True)
    assert np.load(tmp_path / "regions.npy", mmap_mode="r").dtype == dtype
    found = {mode: list(loader.loaded(bench, pairs, mode)()) for mode in loader.MODES}
    for mode, batches in found.items():
        assert len(batches) == 5, mode
        for one, other in zip(batches, found["on-device"], strict=True):
            assert one.images.dtype == torch.float32
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.words, other.words)


def test_what_does_not_fit_the_budget_is_skipped_and_said(tmp_path: Path, capsys) -> None:
    assert loader.main([*TINY, "--folder", str(tmp_path), "--budget-seconds", "0"]) == 0
    assert "scan-t2i   skipped: the time budget is spent" in capsys.readouterr().out


def test_a_mode_that_is_too_slow_is_marked() -> None:
    row = {
        "backbone": "saf",
        "mode": "prefetch",
        "seconds": 0.01,
        "steps_per_second": 100,
        "pairs_per_second": 12_800,
    }
    assert loader._line({**row, "ratio": 0.93}).endswith("12,800  93.0%")
    assert loader._line({**row, "ratio": 0.5}).endswith("50.0%, less than 90%")
