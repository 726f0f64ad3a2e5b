"""Whole runs whose steps are replayed from a tape, as CUDA graphs are, equal eager runs, to the bit and on a CPU.

A tape stands still where Python would not: counters, branches, attributes that get a new tensor. So these runs show
that graphs may be kept from one epoch to the next, and what they record of each step: metrics, statistics, observers.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from methods.replaying import DEVICE, Tape, refusing_to_wait, stand_in_for_a_device, started
from sremkit.data import Batches
from sremkit.data.batch import Batch
from sremkit.evaluation.noise_observer import DivisionObserver, NoiseObserver
from sremkit.methods import METHODS, Method, WarmupStatus, build_method
from sremkit.training import step as step_module
from sremkit.training.cuda_graphs import GraphedSteps, _Graph
from sremkit.training.metrics import PairStatistics
from sremkit.training.trainer import Trainer
from training import tiny
from training.test_trainer import Listener

SUPPORTING = [name for name in METHODS if METHODS[name].supports_cuda_graphs]
OPTIONS: dict[str, dict[str, Any]] = {
    "ncr": {"noisy_after": 2},
    "bicro": {"noisy_after": 2},
    "decl": {"hardness_start": 12, "hardness_decay": 0.8},
    "crcl": {"restart_epochs": 3, "restarts": 1, "frozen_epochs": 1},
    "srem-plus": {"rematch_every": 2, "rematch_top_k": 5},
}


class TapedGraph:
    """In the place of a CUDA graph."""

    def __init__(self, tape: Tape, batch: Batch) -> None:
        self.tape, self.batch = tape, batch

    def replay(self) -> None:
        self.tape.play(self.batch)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps are captured on tapes; the list holds the number of captures of each trainer that was made."""
    counts: list[int] = []

    def capture(self: GraphedSteps, batch: Batch) -> _Graph:
        counts.append(1)
        tape = Tape(self._step, batch)
        # The capture of a CUDA graph does not run the step: the replay that follows does. A tape has run it already.
        graph = TapedGraph(tape, batch)
        first = [True]

        def replay() -> None:
            if first:
                first.clear()
            else:
                tape.play(batch)

        graph.replay = replay  # type: ignore[method-assign]
        return _Graph(graph, batch, tape.result)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(GraphedSteps, "_capture", capture)
    monkeypatch.setattr(GraphedSteps, "_run_eagerly", lambda self, batch: self._step(batch))
    monkeypatch.setattr(step_module, "uses_cuda_graphs", lambda settings, *_: settings.deterministic is False)
    return counts


def run_of(
    method: str, *, replayed: bool, prepare: Callable[[Trainer], None] = lambda trainer: None, **changes: Any
) -> tuple[Trainer, list[dict[str, Any]]]:
    """The trainer after its run, and the rows of its epochs. `uses_cuda_graphs` is told by `deterministic`."""
    listener = Listener()
    clean = tiny.tiny_pairs()
    made: dict[str, Any] = {"epochs": 6, "warmup_epochs": 3, "decay_after": 4, "checkpoint_minutes": 1e9}
    trainer = tiny.tiny_trainer(
        method=method,
        method_options=OPTIONS.get(method, {}),
        reporter=listener,
        deterministic=not replayed,
        **{**made, **changes},
    )
    given = trainer.batches.pairs.image_of_text
    trainer.observer = DivisionObserver(clean.image_of_text, given)
    prepare(trainer)
    trainer.run()
    return trainer, [{k: v for k, v in row.items() if not k.startswith("time/")} for row in listener.rows]


def assert_equal_runs(eager: tuple[Trainer, list], found: tuple[Trainer, list]) -> None:
    for trained in (lambda t: t.matcher.state_dict(), lambda t: t.method.state_dict()):
        torch.testing.assert_close(trained(found[0]), trained(eager[0]), rtol=0, atol=0, equal_nan=True)
    for of_found, of_eager in zip(found[1], eager[1], strict=True):
        assert of_found.keys() == of_eager.keys()
        for name, value in of_eager.items():
            assert of_found[name] == value or (np.isnan(value) and np.isnan(of_found[name])), name


@pytest.mark.parametrize("method", SUPPORTING)
def test_a_replayed_run_equals_an_eager_run(method: str, captures: list[int]) -> None:
    eager = run_of(method, replayed=False)
    assert not captures
    found = run_of(method, replayed=True)
    assert_equal_runs(eager, found)
    assert "noisy_pull_ratio" in found[1][-1]
    # At most a capture for each phase: warm-up, after it, a lower learning rate, noisy pairs or labels that are
    # learnt from then on; so some epochs replay what another one has captured.
    assert 2 <= len(captures) <= 6 < len(eager[1])
    if METHODS[method].selects_pairs:
        assert "division_auroc" in found[1][-1]


def test_graphs_are_kept_while_nothing_changes_and_captured_anew_where_it_does(captures: list[int]) -> None:
    run_of("rcl", replayed=True, decay_after=100)
    assert len(captures) == 2  # "warm-up" epochs of a method without one are another phase
    captures.clear()
    run_of("rcl", replayed=True, decay_after=2)
    assert len(captures) == 3  # and at a lower learning rate


def test_a_method_that_does_not_say_what_its_steps_depend_on_is_captured_in_each_epoch(
    captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(METHODS["rcl"], "graph_key", Method.graph_key)
    _, rows = run_of("rcl", replayed=True)
    assert len(captures) == len(rows)


@pytest.mark.parametrize("method", ["srem", "srem-plus"])
def test_after_a_return_to_the_warm_up_steps_are_captured_again(method: str, captures: list[int]) -> None:
    """The restored state must not hold tensors that the captured step would have to move to the device."""
    validations = iter([50.0, 60.0, 70.0, 1.0] + [80.0] * 20)  # the epoch after the warm-up loses everything

    def prepare(trainer: Trainer) -> None:
        trainer.method.warmup_status = lambda: WarmupStatus(is_ready=True, message="ready")  # type: ignore[method-assign]
        trainer.method.returns_to_warmup = True  # type: ignore[misc]

    def run(replayed: bool) -> tuple[Trainer, list]:
        nonlocal validations
        validations = iter([50.0, 60.0, 70.0, 1.0] + [80.0] * 20)
        return run_of(
            method,
            replayed=replayed,
            prepare=prepare,
            adaptive_warmup=True,
            epochs=7,
            validate=lambda model: {"rsum": next(validations)},
        )

    eager, found = run(replayed=False), run(replayed=True)
    assert [row["warmup"] for row in eager[1]] == [True] * 3 + [False, True] + [False] * 5
    assert_equal_runs(eager, found)


@pytest.mark.parametrize("method", [name for name in SUPPORTING if build_method(name).state_dict()])
def test_a_loaded_state_lies_on_the_device(method: str) -> None:
    """Else the next captured step would move it there, which no capture allows."""
    state = {}
    with torch.random.fork_rng():
        source, on_cpu = started(build_method(method), torch.device("cpu"))
        batch = Batches(tiny.tiny_pairs(), batch_size=24).take(np.arange(24))
        on_cpu.loss(lambda b: source.logits_and_losses(b)[0], batch, warmup=True)
        state = {name: t.clone() for name, t in on_cpu.state_dict().items()}
    with stand_in_for_a_device():
        matcher, built = started(build_method(method), DEVICE)
        if hasattr(built, "pairing"):
            built.pairing = SimpleNamespace(assign_images=lambda images: None)
        on_device = batch.to(DEVICE)
        for _ in range(2):  # eager ones
            built.loss(lambda b: matcher.logits_and_losses(b)[0], on_device, warmup=True)
        built.load_state_dict(state)
        with refusing_to_wait():
            built.loss(lambda b: matcher.logits_and_losses(b)[0], on_device, warmup=True)


@pytest.mark.parametrize("method", ["srem", "srem-plus", "decl"])
def test_what_is_recorded_of_a_step_never_waits_for_the_device(method: str) -> None:
    given = tiny.tiny_pairs().image_of_text
    observers = [NoiseObserver(given), DivisionObserver(given, np.roll(given, 1))]
    statistics = PairStatistics([str(k) for k in range(len(given))], DEVICE)
    with stand_in_for_a_device():
        matcher, built = started(build_method(method), DEVICE)
        batch = Batches(tiny.tiny_pairs(), batch_size=24).take(np.arange(24)).to(DEVICE)

        def record(*, warmup: bool) -> None:
            loss = built.loss(lambda b: matcher.logits_and_losses(b)[0], batch, warmup=warmup)
            statistics.update(batch.pair_id, loss.report)
            for observer in observers:
                observer.step(batch, loss, torch.ones(24, device=DEVICE))

        record(warmup=True)  # eager, and without a report
        with refusing_to_wait():
            record(warmup=False)
