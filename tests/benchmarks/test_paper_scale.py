"""The runs at the paper's sizes, at a tiny size: budget, continuation, table and figures."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import paper_scale
from benchmarks.paper_scale import Cell, history_facts, run_cells
from sremkit.errors import UserError
from sremkit.training.diagnostics import StoppedError

SIZES = ["--images", "40", "--regions", "3", "--dim", "8", "--concepts", "20"]
TINY = {
    "training.epochs": 2, "training.warmup_epochs": 1, "training.batch_size": 64, "training.device": "cpu",
    "training.workers": 0, "data.min_count": 1, "model.embed_size": 8, "model.word_dim": 4, "model.sim_dim": 4,
}  # fmt: skip


class Done:
    """A process that has ended."""

    def poll(self) -> int:
        return 0


def command(out: Path, *cells: str) -> list[str]:
    settings = [part for key, value in TINY.items() for part in ("--set", f"{key}={value}")]
    return [*SIZES, *settings, "--jobs", "1", "-o", str(out), "--cells", *cells]


def test_cells_train_stop_go_on_and_end_in_a_table_with_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []

    def start(folder: Path) -> Any:
        codes.append(paper_scale.run_cell(folder))
        return Done()

    monkeypatch.setattr(paper_scale, "start_cell", start)
    train = paper_scale.train

    def stopped(*_: object, **_options: object) -> None:
        raise StoppedError("stopped after 1 step")

    monkeypatch.setattr(paper_scale, "train", stopped)
    assert paper_scale.main(command(tmp_path, "srem:0.4:0:saf")) == 0
    assert codes == [3]
    assert "0 of 1 cells are finished" in capsys.readouterr().out
    monkeypatch.setattr(paper_scale, "train", train)
    assert paper_scale.main(command(tmp_path, "srem:0.4:0:saf")) == 0
    assert paper_scale.main(command(tmp_path, "srem:0.4:0:saf")) == 0
    assert codes == [3, 0]  # a finished cell is not run again
    assert "1 of 1 cells are finished" in capsys.readouterr().out
    row = json.loads((tmp_path / "runs" / "srem_0.4_0_saf" / "row.json").read_text())
    assert (row["epochs"], row["pairs"], row["precision"]) == (3, 200, "float32")
    assert 0 <= row["auroc"] <= 1
    assert row["best_rsum"] >= row["last_rsum"]
    assert row["minutes"] > 0
    assert "| srem | 40% | 0 | saf |" in (tmp_path / "table.md").read_text()
    for figure in ("epochs-saf-0.4", "energies-srem_0.4_0_saf"):
        assert (tmp_path / f"{figure}.png").stat().st_size > 0
    overrides = ["training.epochs=7"]
    with pytest.raises(UserError, match="other settings"):
        paper_scale.prepare_cells([Cell("srem", 0.4, 0, "saf")], "f30k", tmp_path / "data", tmp_path, overrides)


def test_when_the_time_is_over_running_cells_are_stopped_and_the_others_wait(tmp_path: Path) -> None:
    class Running:
        def __init__(self) -> None:
            self.signals: list[int] = []

        def poll(self) -> None:
            return None

        def send_signal(self, number: int) -> None:
            self.signals.append(number)

        def wait(self, timeout: float) -> int:
            assert self.signals == [signal.SIGTERM]
            return 3

    started: dict[str, Running] = {}

    def start(folder: Path) -> subprocess.Popen[bytes]:
        return started.setdefault(folder.name, Running())  # type: ignore[return-value]

    folders = [tmp_path / name for name in ("finished", "one", "two", "three")]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "row.json").write_text("{}")
    run_cells(folders, jobs=2, seconds=0.3, start=start)
    assert list(started) == ["one", "two"]
    assert all(process.signals == [signal.SIGTERM] for process in started.values())


def test_a_cell_is_named_by_its_parts() -> None:
    assert Cell.parse("srem-plus:0.4:2:sgr") == Cell("srem-plus", 0.4, 2, "sgr")
    assert str(Cell("srem", 0.6, 0, "saf")) == "srem:0.6:0:saf"
    with pytest.raises(UserError, match=r"METHOD:NOISE:SEED:BACKBONE, such as .*; got 'srem:0.4'"):
        Cell.parse("srem:0.4")


def test_the_figures_of_a_history() -> None:
    epochs = [
        {"val/rsum": 2.0, "warmup": True, "noisy_pull_ratio": 0.4},
        {"val/rsum": 100.0, "warmup": True},
        {"val/rsum": 90.0, "warmup": False, "selected_wrong": 0.2, "noisy_gradient_ratio": 0.05},
        {"val/rsum": 99.0, "warmup": False, "selected_wrong": 0.1, "noisy_gradient_ratio": 0.03},
    ]
    facts = history_facts(epochs)
    assert facts["largest_fall"] == pytest.approx(0.1)
    assert (facts["best_rsum"], facts["last_rsum"]) == (100.0, 99.0)
    assert (facts["noisy_gradients"], facts["most_noisy_gradients"]) == (0.03, 0.05)  # the warm-up does not count
    assert (facts["warmup_epochs"], facts["epochs"], facts["selected_wrong"]) == (2, 4, 0.1)
