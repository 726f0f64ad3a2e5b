"""How cost grows: every size alone, a slope that is an exponent, an image and a table."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from benchmarks import growth

TINY = ["scan-t2i", "--small", "--device", "cpu", "--modes", "eager", "--min-run-time", "0"]


def test_each_size_doubles_while_the_others_stay(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "new" / "growth.csv"
    assert growth.main([*TINY, "-o", str(out)]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["axis"], row["size"]) for row in rows[:4]] == [
        ("batch", "2"),
        ("batch", "4"),
        ("batch", "8"),
        ("words", "2"),
    ]
    assert len(rows) == 12
    for row in rows:
        assert float(row["seconds"]) > 0
        usual = growth.SMALL_SIZES._replace(**{row["axis"]: int(row["size"])})
        assert {name: int(row[name]) for name in usual._fields} == usual._asdict()
    assert out.with_suffix(".png").stat().st_size > 10_000
    svg = out.with_suffix(".svg").read_text()
    for words in ("words of a caption", "width of embeddings", "regions", "scan-t2i, eager"):
        assert words in svg
    assert str(out.with_suffix(".svg")) in capsys.readouterr().out


def test_a_size_that_fails_does_not_cost_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(bench, name, mode, axis, sizes):
        if sizes.batch == 8:
            raise RuntimeError("out of memory")
        return {"backbone": name, "mode": mode, "axis": axis, "size": getattr(sizes, axis), "seconds": 0.001}

    monkeypatch.setattr(growth, "step_row", refuse)
    assert growth.main([*TINY, "-o", str(tmp_path / "g.csv")]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: RuntimeError: out of memory" in printed
    assert printed.endswith("1 of 12 measurements failed\n")
    with (tmp_path / "g.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 11


def test_backbones_without_regions_are_refused_and_an_empty_budget_draws_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert growth.main(["dual", "-o", str(tmp_path / "g.csv")]) == 2
    assert "dual: growth is measured for backbones with words and regions" in capsys.readouterr().err
    nothing = [
        "imram",
        "--device",
        "cpu",
        "--modes",
        "triton-graph",
        "-o",
        str(tmp_path / "g.csv"),
    ]
    assert growth.main(nothing) == 2
    assert "imram cannot run as triton-graph here; try --modes eager" in capsys.readouterr().err
    assert growth.main([*TINY, "-o", str(tmp_path / "g.csv"), "--budget-seconds", "0"]) == 0
    assert "skipped: the time budget is spent" in capsys.readouterr().out
    assert not (tmp_path / "g.png").exists()


def test_the_slope_is_the_exponent_at_the_large_end() -> None:
    # y = x² for the last three; a constant part that rules the small sizes does not count.
    assert growth.slope([(1.0, 50.0), (2.0, 50.0), (8.0, 64.0), (16.0, 256.0), (32.0, 1024.0)]) == pytest.approx(2)
    assert growth.slope([(4.0, 3.0), (2.0, 6.0)]) == pytest.approx(-1)
    assert math.isnan(growth.slope([(4.0, 3.0)]))
