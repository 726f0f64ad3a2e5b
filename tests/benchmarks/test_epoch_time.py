"""The parts of an epoch's time, without a device: what is counted, and that nothing stays patched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import epoch_time
from benchmarks.epoch_time import Times, main, timed_graphs
from sremkit.methods import METHODS, Method, build_method
from sremkit.training.cuda_graphs import GraphedSteps


@pytest.fixture
def without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))

    class Event:
        """Half a second passes from one to the next."""

        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = next(clock) / 2

        def elapsed_time(self, after: Event) -> float:
            return 1000 * (after.at - self.at)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("CUDAGraph", (), {"replay": lambda self: None}))
    ticks = iter(range(0, 1000, 2))  # of the host: two seconds for each call
    monkeypatch.setattr(epoch_time, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))


METRICS = {"time/train_seconds": 10.0, "time/compile_seconds": 3.0, "time/validate_seconds": 1.0, "val/rsum": 321.0}


@pytest.mark.usefixtures("without_a_device")
def test_what_is_left_of_an_epoch_is_neither_replay_nor_capture_nor_eager_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphedSteps, "_capture", lambda self, batch: "graph")
    monkeypatch.setattr(GraphedSteps, "_run_eagerly", lambda self, batch: "result")
    times, steps = Times(), object.__new__(GraphedSteps)
    with timed_graphs(times, recapture=False):
        assert steps._run_eagerly(None) == "result"
        assert steps._capture(None) == "graph"
        for _ in range(3):
            torch.cuda.CUDAGraph().replay()
    row = times.row(METRICS)
    parts = {"replays": 1.5, "num_replays": 3, "captures": 2, "num_captures": 1, "eager": 2, "num_eager": 1}
    assert row == {"seconds": 13.0, **parts, "validation": 1.0, "val_rsum": 321.0, "other": 7.5}
    empty = times.row(METRICS)
    assert (empty["num_replays"], empty["num_captures"], empty["num_eager"], empty["other"]) == (0, 0, 0, 13.0)


@pytest.mark.usefixtures("without_a_device")
def test_to_capture_in_each_epoch_methods_do_not_say_what_their_graphs_depend_on() -> None:
    before: dict[str, Any] = {name: METHODS[name].graph_key for name in METHODS}
    with timed_graphs(Times(), recapture=True):
        assert {build_method(name).graph_key() for name in METHODS} == {None}
    assert {name: METHODS[name].graph_key for name in METHODS} == before
    assert build_method("rcl").graph_key() is not None
    assert Method.graph_key(build_method("rcl")) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_there_is_nothing_to_measure(capsys: pytest.CaptureFixture) -> None:
    assert main(["scenes-srem", "--set", "data.train_options.num_scenes=20"]) == 2
    assert "CUDA graphs need a CUDA device" in capsys.readouterr().err
