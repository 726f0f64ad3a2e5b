"""The bench of the tiled objective: what it measures is the objective, and its errors are errors."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from benchmarks import tiles
from sremkit.objectives.fast.tiled import TiledSREM

CPU = torch.device("cpu")


def test_the_errors_are_those_of_rounding() -> None:
    row = tiles.measure_tiles(96, 16, CPU)
    assert 0 < row["total_error"] < 1e-5
    assert 0 < row["gradient_error"] < 1e-5
    assert row["seconds"] > 0
    assert row["peak_gb"] is None  # a CPU's peak would be that of the whole process


def test_a_wrong_gradient_is_an_error_of_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(TiledSREM):
        def from_embeddings(self, image_emb, text_emb, scale, **options):
            half_detached = 0.5 * (text_emb + text_emb.detach())  # the same numbers, half of their gradient
            return super().from_embeddings(image_emb, half_detached, scale, **options)

    monkeypatch.setattr(tiles, "TiledSREM", Wrong)
    row = tiles.measure_tiles(96, 16, CPU)
    assert row["total_error"] < 1e-5
    assert 0.1 < row["gradient_error"] < 0.5


def test_the_command_prints_and_writes_a_row_per_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "tiles.csv"
    assert tiles.main(["--batch-sizes", "32", "48", "--width", "8", "--device", "cpu", "-o", str(out)]) == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["pairs"] for row in rows] == ["32", "48"]
    assert "48 pairs of width 8" in capsys.readouterr().out
    assert tiles.main(["--batch-sizes", "1"]) == 2
    assert "must be 2 or more" in capsys.readouterr().err


def test_batches_too_large_for_the_plain_one_have_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "MAX_COMPARED", 30)
    assert "total_error" not in tiles.measure_tiles(32, 8, CPU)
