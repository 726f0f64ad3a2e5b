"""The loss of a method by torch.compile: the same numbers, for full batches alone, and never first within a capture.

Dynamo traces each method's loss, and PyTorch runs the traced graph as it is ("eager"), so runs are equal to rounding.
What Inductor makes of such a graph is tested on a GPU.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from methods.replaying import batch_number, started
from sremkit.config.recipes import TrainingSettings
from sremkit.data import Batches
from sremkit.data.batch import Batch
from sremkit.methods import build_method
from sremkit.training import step as step_module
from sremkit.training.cuda_graphs import GraphedSteps, _Graph
from sremkit.training.step import CompiledLoss, OptimizerStep
from sremkit.training.trainer import Trainer
from training import tiny
from training.test_cuda_graphs import MODELS, Letters, lettered_pairs
from training.test_replayed_runs import OPTIONS, SUPPORTING, assert_equal_runs, captures, run_of
from training.test_trainer import Listener

__all__ = ["captures"]  # a fixture
CPU = torch.device("cpu")


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.compile` traces, and runs the graph without compiling it."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("method", SUPPORTING)
def test_a_run_with_a_compiled_loss_equals_an_eager_run(method: str) -> None:
    from torch._dynamo.utils import counters

    def prepare(trainer: Trainer) -> None:
        trainer.step.compiled_loss = CompiledLoss(trainer.method, trainer.step.forward)

    counters.clear()
    changes = {"epochs": 3, "warmup_epochs": 1}
    found = run_of(method, replayed=False, prepare=prepare, **changes)
    assert counters["graph_break"]  # the forward pass, and what else runs the model
    assert all("torch.compiler.disable" in reason for reason in counters["graph_break"])
    assert_equal_runs(run_of(method, replayed=False, **changes), found)


def test_a_compiled_training_compiles_the_loss() -> None:
    matcher, method = started(build_method("infonce"), CPU)
    for compile_it in (True, False):
        step = OptimizerStep(matcher, method, TrainingSettings(compile=compile_it), device=CPU)
        assert (step.compiled_loss is not None) is compile_it


def test_a_method_that_decides_during_a_step_what_to_compute_is_not_compiled() -> None:
    matcher, method = started(build_method("mscn"), CPU)
    assert OptimizerStep(matcher, method, TrainingSettings(compile=True), device=CPU).compiled_loss is None


class Recording:
    """In the place of a compiled loss: notes the pairs of each batch, the phase, and whether it is captured."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.calls: list[tuple[int, bool, bool]] = []
        self.captures = False

    def __call__(self, batch: Batch, *, warmup: bool) -> Any:
        self.calls.append((len(batch), warmup, self.captures))
        return self.trainer.method.loss(self.trainer.step.forward, batch, warmup=warmup)


@pytest.mark.parametrize("method", ["srem", "crcl"])
def test_the_first_full_batch_of_a_phase_is_compiled_outside_of_a_capture(
    method: str, captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[Recording] = []

    def prepare(trainer: Trainer) -> None:
        losses.append(Recording(trainer))
        trainer.step.compiled_loss = losses[0]  # type: ignore[assignment]
        capture = GraphedSteps._capture

        def noted(self: GraphedSteps, batch: Batch) -> Any:
            losses[0].captures = True
            made = capture(self, batch)
            losses[0].captures = False
            return made

        monkeypatch.setattr(GraphedSteps, "_capture", noted)

    # Four batches of 20 and one of 16 an epoch.
    changes = {"batch_size": 20, "epochs": 3, "warmup_epochs": 2, "decay_after": 100}
    found = run_of(method, replayed=True, prepare=prepare, **changes)
    (calls,) = [loss.calls for loss in losses]
    assert {pairs for pairs, *_ in calls} == {20}
    for warmup in (True, False):
        of_phase = [is_captured for _, phase, is_captured in calls if phase is warmup]
        assert of_phase[0] is False
        assert True in of_phase
    monkeypatch.undo()
    eager = run_of(method, replayed=False, **changes)
    assert_equal_runs(eager, found)


class Compilations:
    """A stand-in for captures that runs the step, and counts what Dynamo compiles in it and elsewhere."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.captures = self.inside = 0

        def capture(steps: GraphedSteps, batch: Batch) -> _Graph:
            before = self.total()
            result = steps._step(batch)
            self.captures += 1
            self.inside += self.total() - before
            return _Graph(SimpleNamespace(replay=lambda: None), batch, result)

        monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
        monkeypatch.setattr(GraphedSteps, "_capture", capture)
        monkeypatch.setattr(GraphedSteps, "_run_eagerly", lambda steps, batch: steps._step(batch))
        monkeypatch.setattr(step_module, "uses_cuda_graphs", lambda *_: True)

    def total(self) -> int:
        return int(torch._dynamo.utils.counters["frames"]["total"])


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", ["srem", "crcl", "gsc", "ncr"])
def test_nothing_is_compiled_again_for_another_text_width_or_epoch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compilations = Compilations(monkeypatch)
    torch._dynamo.utils.counters.clear()
    options = {"learning_rate": 1e-4, "drop_last": True, "adaptive_warmup": False, "cuda_graphs": False}
    settings = TrainingSettings(epochs=10, warmup_epochs=2, decay_after=4, batch_size=16, **options)
    method = build_method(name, **OPTIONS.get(name, {}))
    matcher = method.model("vse-infty", image_dim=12, **MODELS["vse-infty"])
    batches = Batches(lettered_pairs(64), batch_size=16, vocabulary=Letters(), drop_last=True, bucket_by_length=True)
    trainer = Trainer(matcher, method, batches, settings, device=CPU, reporter=Listener())
    trainer.run_step.graphed._can_capture = lambda batch: True
    trainer.step.compiled_loss = CompiledLoss(method, trainer.step.forward)
    trainer.run()
    assert compilations.captures > 3  # two widths, in the warm-up and after it
    assert compilations.inside == 0
    # The parts before and after the model runs, in the warm-up and after it, and for what changes once.
    assert compilations.total() <= 8


def test_steps_in_another_precision_are_not_compiled() -> None:
    matcher, method = started(build_method("infonce"), CPU)
    step = OptimizerStep(matcher, method, TrainingSettings(batch_size=24, precision="bf16"), device=CPU)
    calls: list[Batch] = []

    def compiled(batch: Batch, *, warmup: bool) -> Any:
        calls.append(batch)
        return method.loss(step.forward, batch, warmup=warmup)

    step.compiled_loss = compiled  # type: ignore[assignment]
    step(batch_number(0), warmup=False, precision="float32")
    assert not calls
    step(batch_number(0), warmup=False)
    step(batch_number(0)[:20], warmup=False)
    assert [len(batch) for batch in calls] == [24]


def test_a_failed_compilation_leaves_the_loss_eager() -> None:
    trainer = tiny.tiny_trainer(epochs=1, warmup_epochs=0)
    told: list[str] = []
    trainer.reporter.warn = told.append  # type: ignore[method-assign]
    trainer.run_step.may_fall_back = True

    def broken(batch: Batch, *, warmup: bool) -> Any:
        raise RuntimeError("Inductor has no compiler")

    trainer.step.compiled_loss = broken  # type: ignore[assignment]
    trainer.run()
    assert trainer.step.compiled_loss is None
    assert (
        told.count("training.compile: compiling failed (Inductor has no compiler); training continues without it") == 1
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")
@pytest.mark.parametrize("name", SUPPORTING)
@pytest.mark.parametrize("warmup", [True, False])
def test_inductor_computes_the_same_loss_and_gradient(name: str, warmup: bool) -> None:
    torch._dynamo.reset()
    device = torch.device("cuda")
    results = []
    for is_compiled in (False, True):
        matcher, method = started(build_method(name), device)
        forward = lambda batch, matcher=matcher: matcher.logits_and_losses(batch)[0]  # noqa: E731
        batch = batch_number(0).to(device)
        if is_compiled:
            loss = CompiledLoss(method, forward)(batch, warmup=warmup)
        else:
            loss = method.loss(forward, batch, warmup=warmup)
        loss.total.backward()
        gradients = [p.grad for p in matcher.parameters() if p.grad is not None]
        results.append((loss.total.detach(), dict(loss.parts), gradients, method.state_dict()))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5, equal_nan=True)
