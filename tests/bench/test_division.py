"""The table of divisions and costs, the figure of recall against cost, and what a cell says of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from small_recipes import TINY
from sremkit.bench.division import division_table, with_relative_seconds
from sremkit.bench.figures import draw_cost
from sremkit.bench.grid import DIVISION, read_rows
from sremkit.bench.methods import method_cells
from sremkit.cli.main import main
from sremkit.errors import UserError
from sremkit.methods import METHODS


def row(method: str, seconds: float, *, filtering: float = 0.0, rate: float = 0.6, **more: Any) -> dict[str, Any]:
    labels = {"data": "scenes", "backbone": "dual", "method": method, "rate": rate, "networks": 1, "test_rsum": 200.0}
    return {**labels, "seconds_per_epoch": seconds, "filter_seconds_per_epoch": filtering, **more}


def test_times_are_relative_to_infonce_of_the_same_cell() -> None:
    rows = [row("infonce", 1.0), row("infonce", 3.0), row("gsc", 5.0, filtering=1.0), row("gsc", 5.0, rate=0.4)]
    assert [r["relative_seconds"] for r in with_relative_seconds(rows)] == [0.5, 1.5, 3.0, None]


def test_the_table_by_hand() -> None:
    found = {"division_precision": 0.5, "division_recall": 0.25, "division_auroc": 0.75, "memory_bytes_per_pair": 8.4}
    rows = [row("infonce", 2.0), row("l2rm", 3.0, rematched_right=0.125, **found)]
    ((heading, lines),) = division_table(rows, title="t").sections
    assert heading.startswith("wrong pairs found")
    assert lines[0] == ["dual", "0.6", "infonce", "1", "1", "-", "-", "-", "-", "1.0", "-"]
    assert lines[1] == ["dual", "0.6", "l2rm", "1", "1", "0.500", "0.250", "0.750", "0.125", "1.5", "8"]


def test_a_cell_reports_division_and_memory_and_the_commands_show_them(tmp_path: Path, capsys) -> None:
    out = tmp_path / "g.csv"
    command = ["bench", "methods", "--data", "scenes", "--methods", "infonce,l2rm", "--noise", "0.6", "--seeds", "1"]
    main([*command, "-o", str(out), "--table", str(tmp_path / "g.md"), *(f"--set={s}" for s in TINY)])
    rows = {r["method"]: r for r in read_rows(out)}
    l2rm, infonce = rows["l2rm"], rows["infonce"]
    assert all(0 <= float(l2rm[name]) <= 1 for name in DIVISION if l2rm[name])
    assert float(l2rm["division_recall"]) >= 0
    assert infonce["division_recall"] == ""
    assert float(l2rm["memory_bytes_per_pair"]) >= 1 > float(infonce["memory_bytes_per_pair"]) == 0
    assert "division_recall" in l2rm["history"][-1]
    assert "time/InfoNCE" in capsys.readouterr().out
    assert (tmp_path / "g-division.md").exists()
    main(["bench", "figures", "cost", "--from", str(out), "-o", str(tmp_path)])
    assert (tmp_path / "cost-vse-infty-0.6.png").stat().st_size > 1000


def test_the_figure_needs_infonce(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="add infonce to --methods"):
        draw_cost([row("gsc", 1.0)], tmp_path / "x")


def test_all_methods_are_every_registered_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def run(cells: list, out: Path, **_: object) -> list[dict]:
        asked.extend(labels["method"] for labels, _ in cells)
        return [{**labels, "test_rsum": 1.0} for labels, _ in cells]

    monkeypatch.setattr("sremkit.bench.methods.run_methods", run)
    command = ["bench", "methods", "--data", "scenes", "--methods", "all", "--noise", "0.6", "--seeds", "1"]
    main([*command, "-o", str(tmp_path / "g.csv")])
    assert asked == list(METHODS)
    assert {"crcl", "gsc", "in2r", "l2rm", "npc"} <= set(asked)
    assert len(method_cells("scenes", ["vse-infty"], asked, [0.6], [0])) == len(asked)
