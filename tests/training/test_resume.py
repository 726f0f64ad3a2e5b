"""A run that was stopped anywhere and resumed equals the one that was not, bit for bit."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from sremkit.training.checkpoint import is_valid
from sremkit.training.diagnostics import StoppedError
from sremkit.training.reporters import Reporter
from sremkit.training.run_folder import RunFolder
from training import tiny

KILLS = 20


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> RunFolder:
    folder = RunFolder.create(tmp_path_factory.mktemp("whole") / "run", config="")
    tiny.tiny_trainer(folder).run()
    return folder


def assert_same(one: RunFolder, other: RunFolder) -> None:
    (tensors, metrics), (other_tensors, other_metrics) = tiny.outcome(one), tiny.outcome(other)
    assert metrics == other_metrics
    assert tensors.keys() == other_tensors.keys()
    for name in tensors:
        assert torch.equal(tensors[name], other_tensors[name]), name


def test_two_whole_runs_are_the_same(uninterrupted: RunFolder, tmp_path: Path) -> None:
    again = RunFolder.create(tmp_path / "run", config="")
    tiny.tiny_trainer(again).run()
    assert_same(uninterrupted, again)


def test_dropout_and_selection_are_at_work(uninterrupted: RunFolder) -> None:
    """Else equality after a resume would say nothing about generators and statistics."""
    tensors, metrics = tiny.outcome(uninterrupted)
    assert metrics[-1]["selected_i2t"] > 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(tiny.tiny_trainer().settings.seed)
        assert not torch.equal(tensors["generator/cpu"], torch.get_rng_state())  # nothing else draws from it


class StopAfter(Reporter):
    """Sends this process Ctrl-C after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)


# 6 batches an epoch: the first step, in the warm-up, at the end of an epoch, in the middle, near the end.
@pytest.mark.parametrize("steps", [1, 8, 12, 15, 24, 47])
def test_stopped_by_ctrl_c_and_resumed_it_is_the_same(uninterrupted: RunFolder, tmp_path: Path, steps: int) -> None:
    folder = RunFolder.create(tmp_path / "run", config="")
    with pytest.raises(
        StoppedError, match=rf"stopped after {steps} steps and saved; continue with `srem train --resume"
    ):
        tiny.tiny_trainer(folder, reporter=StopAfter(steps), checkpoint_minutes=1e9).run()
    torch.manual_seed(12345)  # whatever happened in between
    tiny.tiny_trainer(folder).run()
    assert_same(uninterrupted, folder)


class PowerCut:
    """Ends the run at the end of an epoch, after its row was written and before its state was."""

    def step(self, *_: object) -> None: ...

    def epoch(self, row: dict) -> None:
        if row["epoch"] == 1:
            raise ConnectionAbortedError

    def warn(self, sentence: str) -> None: ...


def test_an_epoch_whose_row_was_written_but_not_its_end_appears_once(uninterrupted: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", config="")
    with pytest.raises(ConnectionAbortedError):
        tiny.tiny_trainer(folder, reporter=PowerCut(), checkpoint_minutes=0.0).run()
    tiny.tiny_trainer(folder).run()
    assert_same(uninterrupted, folder)


def test_a_finished_run_resumed_stays_as_it_is(uninterrupted: RunFolder) -> None:
    before = tiny.outcome(uninterrupted)
    tiny.tiny_trainer(uninterrupted).run()
    after = tiny.outcome(uninterrupted)
    assert before[1] == after[1]


def test_killed_twenty_times_at_random_it_still_ends_the_same(uninterrupted: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "run"
    command = [sys.executable, tiny.__file__, str(path)]
    moments = random.Random(0)
    kills = 0
    while kills < KILLS:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            time.sleep(moments.uniform(0.0, 0.12))
            process.kill()
            finished = "finished" in process.stdout.read()
        kills += 1
        for checkpoint in (path / "checkpoints").glob("step-*"):
            assert is_valid(checkpoint), f"{checkpoint} is broken after kill {kills}"
        if finished:
            break
    assert kills >= 5, "the run ended before it could be killed a few times; make it longer"
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("finished\n")
    assert_same(uninterrupted, RunFolder.open(path))
