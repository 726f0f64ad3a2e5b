"""What "auto" is resolved to, with stand-ins for devices, and the way back to eager training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from small_models import make_items, small_matcher
from sremkit import ops
from sremkit.bench.grid import cell_key
from sremkit.config.recipes import TrainingSettings, load_recipe
from sremkit.data.batch import Batch
from sremkit.errors import UserError
from sremkit.methods import build_method
from sremkit.models import BACKBONES
from sremkit.models.regional_compile import CompileClock, compile_around_kernels, run_eagerly, use_compile_cache
from sremkit.training.cuda_graphs import GraphedSteps, _Recovery
from sremkit.training.execution import (
    MIN_STEPS_TO_COMPILE,
    describe_execution,
    deterministic_algorithms,
    resolve_execution,
    resolve_precision,
    run_or_repeat,
)
from training import tiny

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
LONG = MIN_STEPS_TO_COMPILE
Chosen = tuple[str, bool, bool]  # precision, compile, CUDA graphs


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of compute capability 9.0, with Triton."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(ops, "has_triton", lambda: True)
    monkeypatch.setattr(ops, "backend", "auto")


def chosen(
    backbone: str = "sgr",
    method: str = "srem",
    *,
    device: torch.device = CUDA,
    world: int = 1,
    steps: int = LONG,
    **settings: Any,
) -> Chosen:
    given = TrainingSettings(**settings)
    resolved = resolve_execution(
        given, small_matcher(backbone), build_method(method), (0, world), device, num_steps=steps
    )
    return resolved.precision, resolved.compile, resolved.cuda_graphs


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ("bf16", True, True)),
        ({"backbone": "saf", "method": "rcl"}, ("bf16", True, True)),
        ({"steps": LONG - 1}, ("bf16", False, True)),  # too short to compile
        ({"backbone": "dual"}, ("bf16", False, True)),  # nothing around kernels
        ({"backbone": "vse-infty"}, ("bf16", False, True)),
        ({"method": "mscn"}, ("bf16", True, False)),  # decides during a step what to compute
        ({"world": 2}, ("bf16", False, False)),
        ({"backbone": "dual", "grad_cache_chunk_size": 8}, ("bf16", False, False)),
        ({"deterministic": True}, ("float32", False, False)),
        ({"device": CPU}, ("float32", False, False)),
        ({"device": torch.device("mps")}, ("float32", False, False)),
        ({"precision": "tf32", "compile": False}, ("tf32", False, True)),
        ({"cuda_graphs": False}, ("bf16", True, False)),
        ({"backbone": "vse-infty", "compile": True}, ("bf16", True, False)),  # compiled as a whole
        ({"deterministic": True, "precision": "bf16"}, ("bf16", False, False)),  # as given
    ],
)
def test_auto_is_the_fastest_safe_way(arguments: dict[str, Any], expected: Chosen) -> None:
    assert chosen(**arguments) == expected


@pytest.mark.usefixtures("h200")
def test_a_model_whose_steps_wait_for_the_device_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKBONES["dual"], "supports_cuda_graphs", False)
    assert chosen("dual") == ("bf16", False, False)


@pytest.mark.usefixtures("h200")
def test_without_kernels_nothing_is_compiled_or_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "has_triton", lambda: False)
    assert chosen() == ("bf16", False, False)
    assert chosen("dual") == ("bf16", False, True)  # reads no words
    monkeypatch.setattr(ops, "has_triton", lambda: True)
    monkeypatch.setattr(ops, "backend", "plain")
    assert chosen() == ("bf16", False, False)


@pytest.mark.usefixtures("h200")
def test_a_device_without_bf16_trains_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, expected in (((7, 5), "float32"), ((8, 0), "bf16"), ((12, 0), "bf16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert resolve_precision("auto", CUDA) == expected
        assert resolve_precision("auto", CUDA, deterministic=True) == "float32"
        assert resolve_precision("tf32", CUDA) == "tf32"


def test_what_is_asked_for_explicitly_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(UserError, match="needs a CUDA device"):
        tiny.tiny_trainer(cuda_graphs=True)
    settings = tiny.tiny_trainer().settings  # "auto" on a CPU
    assert (settings.precision, settings.compile, settings.cuda_graphs) == ("float32", False, False)


@pytest.mark.usefixtures("h200")
def test_one_line_says_what_was_chosen() -> None:
    given = TrainingSettings()
    fast = TrainingSettings(precision="bf16", compile=True, cuda_graphs=True)
    line = describe_execution(given, fast, CUDA)
    assert "bf16 after 250 steps in float32, CUDA graphs, compiled; training.deterministic=true" in line
    exact = TrainingSettings(precision="float32", compile=False, cuda_graphs=False, deterministic=True)
    line = describe_execution(TrainingSettings(deterministic=True), exact, CUDA)
    assert line.endswith("float32, no CUDA graphs, not compiled")
    assert describe_execution(given, fast, CPU) == ""
    assert describe_execution(fast, fast, CUDA) == ""  # nothing was left to choose


def test_the_key_of_a_cell_is_that_of_the_default_before_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(*overrides: str) -> str:
        return cell_key(load_recipe("scenes-srem", list(overrides)))

    before = ("training.precision=float32", "training.compile=false", "training.cuda_graphs=false")
    assert key() == key(*before)  # on this machine without a GPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert key() != key(*before)  # bf16 there
    assert key("training.precision=float32") == key(*before)
    assert key("training.device=cpu") == key("training.device=cpu", *before)
    exact = key("training.deterministic=true")
    assert exact == key("training.deterministic=true", *before)
    assert exact != key(*before)
    assert key("training.float32_steps=0") != key()  # has an effect in bf16


def test_deterministic_algorithms_are_used_inside_only() -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    with deterministic_algorithms(False):
        assert not torch.are_deterministic_algorithms_enabled()
    with deterministic_algorithms(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


class Counting(torch.nn.Module):
    """A model whose forward pass draws a random number and counts itself in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self) -> float:
        self.calls += 1
        return float(torch.rand(()))


def test_a_step_that_fails_to_compile_is_repeated_from_the_state_before_it() -> None:
    model, method, told = Counting(), build_method("srem"), []
    broken = True

    def fall_back(why: str) -> None:
        nonlocal broken
        broken = False
        told.append(why)

    def step() -> float:
        drawn = model()
        method.monitor._sums += 1
        if broken:
            raise RuntimeError("no compiler\nwas found")
        return drawn

    torch.manual_seed(3)
    expected = float(torch.rand(()))
    torch.manual_seed(3)
    assert run_or_repeat(step, model, method, CPU, fall_back) == expected
    assert told == ["no compiler"]
    assert model.calls == 1
    assert method.monitor._sums.tolist() == [1, 1, 1]

    def wrong() -> None:
        raise ValueError("of the model itself")

    with pytest.raises(ValueError, match="of the model itself"):
        run_or_repeat(wrong, model, method, CPU, fall_back)
    with pytest.raises(UserError, match="logits"):
        run_or_repeat(lambda: (_ for _ in ()).throw(UserError("logits")), model, method, CPU, fall_back)
    assert len(told) == 2  # a user's mistake is not tried again


def test_a_run_whose_compilation_fails_has_the_numbers_of_an_eager_run() -> None:
    def trained(*, breaks: bool) -> dict[str, torch.Tensor]:
        trainer = tiny.tiny_trainer(epochs=2, warmup_epochs=1)
        forward, told = trainer.step.forward, []
        trainer.reporter.warn = told.append  # type: ignore[method-assign]
        if breaks:
            trainer.run_step.may_fall_back = True

            class Broken:
                def __call__(self, batch: Batch) -> torch.Tensor:
                    if trainer.run_step.may_fall_back:
                        torch.rand(3)
                        raise RuntimeError("Inductor has no compiler")
                    return forward(batch)

                def __getattr__(self, name: str) -> Any:
                    return getattr(forward, name)

            trainer.step.forward = Broken()  # type: ignore[assignment]
        trainer.run()
        sentence = "training.compile: compiling failed (Inductor has no compiler); training continues without it"
        assert told.count(sentence) == breaks
        return trainer.matcher.state_dict()

    eager, fallen_back = trained(breaks=False), trained(breaks=True)
    assert all(torch.equal(eager[name], fallen_back[name]) for name in eager)


def test_compiled_parts_can_be_made_eager_again(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = small_matcher("saf").train()
    monkeypatch.setattr(ops, "uses_triton", lambda x: True)
    monkeypatch.setattr(torch, "compile", lambda function: lambda *args: "compiled")
    assert compile_around_kernels(matcher)
    parts = [module for module in matcher.modules() if getattr(module, "PARTS", ())]
    assert all(part.part(name)() == "compiled" for part in parts for name in part.PARTS)
    run_eagerly(matcher)
    assert all(part.part(name) == getattr(part, name) for part in parts for name in part.PARTS)


class FailingGraph:
    """In the place of `torch.cuda.graph`."""

    def __init__(self, *args: object, **options: object) -> None:
        pass

    def __enter__(self) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    def __exit__(self, *problem: object) -> None:
        pass


@pytest.mark.parametrize("recovers", [True, False])
def test_a_failed_capture_falls_back_if_the_device_recovers(recovers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in {
        "Stream": lambda device: None, "graph_pool_handle": lambda: None, "CUDAGraph": lambda: None,
        "graph": FailingGraph, "get_rng_state": lambda device: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(_Recovery, "recover", lambda self: recovers)
    monkeypatch.setattr(GraphedSteps, "_run_eagerly", lambda self, batch: self._step(batch))
    told: list[str] = []
    steps = GraphedSteps(lambda batch: int(batch.words.sum()), CPU, on_failure=told.append)
    batch = make_items(4, words=(2, 5)).batch()
    expected = int(batch.words.sum())
    assert [steps(batch) for _ in range(2)] == [expected] * 2
    if not recovers:
        with pytest.raises(RuntimeError, match=r"could not be captured.*training.cuda_graphs=false"):
            steps(batch)
        return
    assert [steps(batch) for _ in range(3)] == [expected] * 3
    assert told == ["operation not permitted when stream is capturing"]  # once


class Capturing:
    """A generator that a failed capture has left in its capturing state; a new state makes it usable."""

    def __init__(self) -> None:
        self.state: torch.Generator | None = None

    def graphsafe_set_state(self, state: torch.Generator) -> None:
        self.state = state


@pytest.mark.parametrize("is_broken", [False, True])
def test_after_a_failed_capture_stream_pool_and_generator_are_given_back(
    is_broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for the calls of PyTorch that need a device."""
    story: list[Any] = []
    generator, before, real = Capturing(), torch.Generator().manual_seed(5), torch.Generator

    class NewGenerator:
        def __init__(self, device: torch.device) -> None:
            self.own = real()

        def set_state(self, state: torch.Tensor) -> None:
            self.own.set_state(state)

        def graphsafe_get_state(self) -> torch.Generator:
            return self.own

    def synchronize(device: torch.device) -> None:
        if is_broken:
            raise RuntimeError("an illegal memory access was encountered")

    for name, stand_in in {
        "current_stream": lambda device: "stream before", "get_rng_state": lambda device: before.get_state(),
        "set_stream": story.append, "set_rng_state": lambda state, device: story.append("generator"),
        "current_device": lambda: 0, "synchronize": synchronize, "default_generators": [generator],
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *args: story.append(args), raising=False)
    monkeypatch.setattr(torch, "Generator", NewGenerator)
    assert _Recovery(CPU, (0, 1)).recover() is not is_broken
    assert story[:2] == ["stream before", (0, (0, 1))]
    assert generator.state is not None
    assert generator.state.initial_seed() == 5
    assert story[2:] == ([] if is_broken else ["generator"])


def test_compilations_are_counted() -> None:
    clock = CompileClock()
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    with clock.running():
        compiled(torch.zeros(2))
    first = clock.seconds
    assert first > 0
    with clock.running():
        compiled(torch.zeros(2))
    assert clock.seconds == first  # compiled already


def test_the_compile_cache_is_the_users_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    assert use_compile_cache() is None
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    folder = use_compile_cache()
    assert folder == tmp_path / "sremkit" / "torchinductor"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    folder.chmod(0o777)  # anybody could write code that is then executed
    assert use_compile_cache() is None
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
