"""Whole runs whose steps are replayed from a tape, as CUDA graphs are, equal eager runs, to the bit and on a CPU.

A tape stands still where Python would not: counters, branches, attributes that get a new tensor. So these runs show
that graphs may be kept from one epoch to the next, and what they record of each step: metrics, statistics, observers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
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
from sremkit.training.diagnostics import StoppedError
from sremkit.training.metrics import PairStatistics
from sremkit.training.run_folder import RunFolder
from sremkit.training.trainer import Trainer
from training import tiny
from training.test_resume import StopAfter
from training.test_trainer import Listener

#: The package's own methods; benchmarks register further ones.
SUPPORTING = [
    name for name in METHODS if METHODS[name].supports_cuda_graphs and METHODS[name].__module__.startswith("sremkit.")
]
OPTIONS: dict[str, dict[str, Any]] = {
    "ncr": {"noisy_after": 2},
    "bicro": {"noisy_after": 2},
    "decl": {"hardness_start": 12, "hardness_decay": 0.8},
    "crcl": {"restart_epochs": 3, "restarts": 1, "frozen_epochs": 1},
    "srem-plus": {"rematch_every": 2, "rematch_top_k": 5},
}


class TapedGraph:
    """In the place of a CUDA graph, whose capture does not run the step: a tape has run it when it is made."""

    def __init__(self, tape: Tape, batch: Batch) -> None:
        self.tape, self.batch = tape, batch
        self.has_run = True

    def replay(self) -> None:
        if not self.has_run:
            self.tape.play(self.batch)
        self.has_run = False


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps are captured on tapes; the list holds the number of pairs of each captured batch."""
    counts: list[int] = []

    def capture(self: GraphedSteps, batch: Batch) -> _Graph:
        counts.append(len(batch))
        tape = Tape(self._step, batch)
        return _Graph(TapedGraph(tape, batch), batch, tape.result)

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
    made: dict[str, Any] = {"epochs": 5, "warmup_epochs": 2, "decay_after": 3, "checkpoint_minutes": 1e9}
    trainer = tiny.tiny_trainer(
        method=method,
        method_options=OPTIONS.get(method, {}),
        reporter=listener,
        deterministic=not replayed,
        **{**made, **changes},
    )
    given = trainer.batches.pairs.image_of_text
    trainer.observer = DivisionObserver(clean.image_of_text, given)
    tables: list[torch.Tensor] = []  # the statistics of each epoch, before they are forgotten
    reported = listener.epoch

    def epoch(row: dict[str, Any]) -> None:
        tables.append(trainer.statistics.table.clone())
        reported(row)

    listener.epoch = epoch  # type: ignore[method-assign]
    trainer.tables = tables  # type: ignore[attr-defined]
    prepare(trainer)
    trainer.run()
    return trainer, [{k: v for k, v in row.items() if not k.startswith("time/")} for row in listener.rows]


def assert_equal_runs(eager: tuple[Trainer, list], found: tuple[Trainer, list]) -> None:
    for trained in (lambda t: t.matcher.state_dict(), lambda t: t.method.state_dict(), lambda t: t.tables):
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
    assert 2 <= len(captures) < len(eager[1])
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

    def prepare(trainer: Trainer) -> None:
        trainer.method.warmup_status = lambda: WarmupStatus(is_ready=True, message="ready")  # type: ignore[method-assign]
        trainer.method.returns_to_warmup = True  # type: ignore[misc]

    def run(replayed: bool) -> tuple[Trainer, list]:
        validations = iter([60.0, 70.0, 1.0] + [80.0] * 20)  # the epoch after the warm-up loses everything
        return run_of(
            method,
            replayed=replayed,
            prepare=prepare,
            adaptive_warmup=True,
            epochs=5,
            validate=lambda model: {"rsum": next(validations)},
        )

    eager, found = run(replayed=False), run(replayed=True)
    assert [row["warmup"] for row in eager[1]] == [True] * 2 + [False, True] + [False] * 3
    assert_equal_runs(eager, found)


def test_a_return_within_an_epoch_captures_the_warm_up_again(captures: list[int]) -> None:
    def prepare(trainer: Trainer) -> None:
        trainer.method.warmup_status = lambda: WarmupStatus(is_ready=True, message="ready")  # type: ignore[method-assign]
        reasons = iter(["few pairs are selected"] + [""] * 1000)
        trainer.method.collapse_message = lambda: next(reasons)  # type: ignore[method-assign]

    # 12 steps an epoch, of which the tenth is checked.
    changes = {"adaptive_warmup": True, "batch_size": 8, "warmup_epochs": 2, "epochs": 4, "validate": None}
    eager, found = (run_of("srem", replayed=replayed, prepare=prepare, **changes) for replayed in (False, True))
    assert_equal_runs(eager, found)
    assert [row["warmup"] for row in found[1]] == [True] * 4 + [False] * 2
    assert len(captures) >= 4  # warm-up; after it; warm-up again; after it


def test_srem_is_captured_again_when_its_monitor_rests(captures: list[int]) -> None:
    """Else the graph would go on to count batches."""

    def prepare(trainer: Trainer) -> None:
        trainer.method.monitor.is_ready = lambda: trainer.position.epoch >= 3  # type: ignore[method-assign]

    runs = [run_of("srem", replayed=replayed, prepare=prepare, decay_after=100) for replayed in (False, True)]
    assert_equal_runs(*runs)
    assert len(captures) == 3


class Scheduled(METHODS["srem"]):  # type: ignore[misc]
    """A subclass whose loss depends on the epoch, and which says nothing of graphs."""

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        super().begin_epoch(epoch, warmup=warmup)
        self.factor = 1.0 + epoch

    def loss(self, forward: Any, batch: Batch, *, warmup: bool) -> Any:
        terms = super().loss(forward, batch, warmup=warmup)
        return replace(terms, total=self.factor * terms.total)


def test_a_subclass_with_a_loss_of_its_own_does_not_inherit_what_its_parent_says(
    captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS._entries, "srem", Scheduled)
    eager, found = (run_of("srem", replayed=replayed) for replayed in (False, True))
    assert_equal_runs(eager, found)
    assert len(captures) == len(found[1])


@pytest.mark.parametrize("method", ["rcl", "srem"])
def test_a_trainer_that_goes_on_after_a_stop_captures_anew(method: str, captures: list[int], tmp_path: Path) -> None:
    outcomes = []
    for replayed in (False, True):
        folder = RunFolder.create(tmp_path / str(replayed), config="")
        trainer = tiny.tiny_trainer(
            folder, method=method, reporter=StopAfter(10), deterministic=not replayed, epochs=3, checkpoint_minutes=1e9
        )
        with pytest.raises(StoppedError):
            trainer.run()
        trainer.run()
        outcomes.append(tiny.outcome(folder))
    assert captures
    torch.testing.assert_close(outcomes[1][0], outcomes[0][0], rtol=0, atol=0, equal_nan=True)
    assert repr(outcomes[1][1]) == repr(outcomes[0][1])  # NaN is not equal to itself


@pytest.mark.parametrize("method", ["srem", "crcl"])
def test_a_step_that_cannot_be_compiled_leaves_no_graph_of_the_state_before(method: str, captures: list[int]) -> None:
    def prepare(trainer: Trainer) -> None:
        trainer.run_step.may_fall_back = True
        forward, calls = trainer.step.forward, []

        class BreaksOnce:
            def __call__(self, batch: Batch) -> torch.Tensor:
                calls.append(len(batch))
                if trainer.run_step.may_fall_back and calls.count(16) == 2:
                    raise RuntimeError("Inductor has no compiler")
                return forward(batch)

            def __getattr__(self, name: str) -> Any:
                return getattr(forward, name)

        trainer.step.forward = BreaksOnce()  # type: ignore[assignment]

    # Four batches of 20 and one of 16 an epoch: the larger ones are captured when the smaller one fails in the second
    # epoch, and are replayed in the next two.
    changes = {"batch_size": 20, "warmup_epochs": 4, "epochs": 1, "prepare": prepare}
    runs = [run_of(method, replayed=replayed, **changes) for replayed in (False, True)]
    assert not any(trainer.run_step.may_fall_back for trainer, _ in runs)
    assert_equal_runs(*runs)


class Counting:
    """An observer that counts on the host."""

    def __init__(self) -> None:
        self.steps, self.pairs = 0, 0

    def step(self, batch: Batch, loss: Any, pull: torch.Tensor | None) -> None:
        self.steps += 1
        self.pairs += int(loss.report.clean[0].numel())

    def finish_epoch(self) -> dict[str, float]:
        found, self.steps, self.pairs = {"steps": self.steps, "pairs": self.pairs}, 0, 0
        return found


def test_an_observer_that_does_not_say_that_it_can_be_replayed_sees_every_batch(captures: list[int]) -> None:
    def prepare(trainer: Trainer) -> None:
        trainer.observer = Counting()  # type: ignore[assignment]

    _, rows = run_of("srem", replayed=True, prepare=prepare)
    assert captures
    assert {(row["steps"], row["pairs"]) for row in rows} == {(6, 96)}


def test_the_level_of_the_logits_is_on_the_device_where_no_warm_up_step_moves_it() -> None:
    """As after a resume."""
    with stand_in_for_a_device():
        matcher, built = started(build_method("srem", warmup_power=0.5), DEVICE)
        batch = Batches(tiny.tiny_pairs(), batch_size=24).take(np.arange(24)).to(DEVICE)
        built.begin_epoch(5, warmup=False)
        for _ in range(2):
            built.loss(lambda b: matcher.logits_and_losses(b)[0], batch, warmup=False)
        with refusing_to_wait():
            built.loss(lambda b: matcher.logits_and_losses(b)[0], batch, warmup=False)


@pytest.mark.parametrize("warmup", [True, False], ids=["warm-up", "later"])
@pytest.mark.parametrize("method", [name for name in SUPPORTING if build_method(name).state_dict()])
def test_a_loaded_state_lies_on_the_device(method: str, warmup: bool) -> None:
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
            built.loss(lambda b: matcher.logits_and_losses(b)[0], on_device, warmup=warmup)
        built.load_state_dict(state)
        with refusing_to_wait():
            built.loss(lambda b: matcher.logits_and_losses(b)[0], on_device, warmup=warmup)


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
