"""A run that was stopped anywhere and resumed equals the one that was not, bit for bit."""

from __future__ import annotations

import os
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


def start_fork(forks: subprocess.Popen[str], path: Path) -> int:
    """A process that trains in the folder; returns its number once it has started."""
    assert forks.stdin is not None
    assert forks.stdout is not None
    forks.stdin.write(f"{path}\n")
    forks.stdin.flush()
    word, number = forks.stdout.readline().split()
    assert word == "started"
    return int(number)


def end_of_fork(forks: subprocess.Popen[str]) -> int:
    """Wait for that process; returns its exit status."""
    assert forks.stdin is not None
    assert forks.stdout is not None
    forks.stdin.write("\n")
    forks.stdin.flush()
    while not (line := forks.stdout.readline()).startswith("ended"):
        assert line == "finished\n"
    return int(line.split()[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_killed_twenty_times_at_random_it_still_ends_the_same(uninterrupted: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "run"
    moments = random.Random(0)
    kills, killed = 0, 0
    with subprocess.Popen(
        [sys.executable, tiny.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as forks:
        while kills < KILLS:
            child = start_fork(forks, path)
            time.sleep(moments.uniform(0.0, 0.12))
            os.kill(child, signal.SIGKILL)
            kills += 1
            last = end_of_fork(forks)
            for checkpoint in (path / "checkpoints").glob("step-*"):
                assert is_valid(checkpoint), f"{checkpoint} is broken after kill {kills}"
            if last == 0:
                break
            assert last == -signal.SIGKILL
            killed += 1
        assert killed >= 5, "the run ended before it could be killed a few times; make it longer"
        start_fork(forks, path)
        assert end_of_fork(forks) == 0
    assert_same(uninterrupted, RunFolder.open(path))
