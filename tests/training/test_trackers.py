"""Trackers store what metrics.jsonl holds, with the real packages in their offline modes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from small_recipes import AS_OPTIONS, tiny
from sremkit.errors import UnknownNameError, UserNotice
from sremkit.training.run_folder import RunFolder
from sremkit.training.trackers import TRACKERS, Tracker, Tracking


class Recorder(Tracker):
    """Keeps in memory what it gets, and fails on demand."""

    name = "recorder"

    def __init__(self, folder, settings, state) -> None:
        super().__init__(folder, settings, state)
        self.settings, self.logged, self.notes, self.closed, self.fails = settings, [], [], None, False
        self.state["runs"] = self.state.get("runs", 0) + 1

    def log(self, metrics: dict[str, float], step: int) -> None:
        if self.fails:
            raise ConnectionError("no route to the server")
        self.logged.append((step, metrics))

    def note(self, kind: str, sentence: str) -> None:
        self.notes.append((kind, sentence))

    def close(self, *, failed: bool = False) -> None:
        self.closed = failed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setitem(TRACKERS, "recorder", Recorder)
    return RunFolder(tmp_path)


ROW = {"step": 7, "epoch": 1, "warmup": True, "loss": 2, "val/i2t/R@1": 3.5, "note": "text"}


def test_a_tracker_gets_settings_numbers_and_sentences(folder: RunFolder) -> None:
    tracking = Tracking(folder, tiny(), ["recorder"])
    [recorder] = tracking.trackers
    tracking.epoch(ROW)
    tracking.warn("careful")
    tracking.info("done")
    tracking.close(failed=True)
    assert recorder.settings["training.batch_size"] == 20
    assert recorder.logged == [(7, {"warmup": 1.0, "loss": 2.0, "val/i2t/R@1": 3.5})]
    assert recorder.notes == [("warning", "careful"), ("note", "done")]
    assert recorder.closed is True


def test_a_resumed_run_goes_on_with_its_trackers_and_their_state(folder: RunFolder) -> None:
    Tracking(folder, tiny(), ["recorder"])
    [resumed] = Tracking(folder, tiny(), []).trackers
    assert resumed.state == {"runs": 2}
    folder.config.touch()
    folder.forget_if_never_begun()
    assert Tracking(folder, tiny(), []).trackers == []


def test_training_goes_on_without_a_tracker_that_fails(folder: RunFolder) -> None:
    tracking = Tracking(folder, tiny(), ["recorder"])
    tracking.trackers[0].fails = True
    with pytest.warns(UserNotice, match=r"recorder failed .*no route to the server.*metrics\.jsonl"):
        tracking.epoch(ROW)
    tracking.epoch(ROW)  # no second warning, which would be an error here


def test_an_unknown_tracker_is_refused_with_the_known_ones(folder: RunFolder) -> None:
    with pytest.raises(UnknownNameError, match=r"no tracker 'wandbb'; did you mean 'wandb'\?"):
        Tracking(folder, tiny(), ["wandbb"])


def test_a_run_is_tracked_offline_by_wandb_and_mlflow(tmp_path: Path) -> None:
    """In a process of its own: both packages leave threads, files and settings behind."""
    for package in ("wandb", "mlflow", "sqlalchemy", "tensorboard"):
        pytest.importorskip(package, reason="the extras 'wandb' and 'mlflow' are not installed")
    out = tmp_path / "tracked"
    environment = os.environ | {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1", "MLFLOW_EXPERIMENT_NAME": "of a test"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    command = [sys.executable, "-m", "sremkit", "train", "scenes-srem", *AS_OPTIONS, "--track", "wandb",
               "--track", "mlflow", "-o", str(out)]  # fmt: skip
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    rows = RunFolder(out).read_metrics()
    assert set(json.loads((out / "tracking.json").read_text())) == {"wandb", "mlflow"}
    assert list((out / "tensorboard").iterdir())
    check_wandb(out, rows)
    check_mlflow(out, rows)


def check_wandb(out: Path, rows: list[dict]) -> None:
    """The offline file is a log of records, in which keys and numbers stand as text."""
    [file] = (out / "wandb").glob("offline-run-*/run-*.wandb")
    records = file.read_bytes()
    assert b"training.batch_size" in records
    assert len(rows) == 2
    for row in rows:
        assert json.dumps(row["loss"]).encode() in records


def check_mlflow(out: Path, rows: list[dict]) -> None:
    """Read with the database's own library, because MLflow's import takes seconds."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(out / "mlflow.db")) as database:
        metrics = database.execute(
            "select step, value from metrics where key = 'val/i2t/R_at_1' order by step"
        ).fetchall()
        [(status, name)] = database.execute("select status, name from runs").fetchall()
        [(batch_size,)] = database.execute("select value from params where key = 'training.batch_size'").fetchall()
    assert metrics == [(row["step"], row["val/i2t/R@1"]) for row in rows]
    assert (status, name, batch_size) == ("FINISHED", "tracked", "20")
