"""Parts compiled for training: the same numbers, only in training, and copies that use their own weights."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest
import torch
from torch import Tensor

from benchmarks.kernel_check import can_check
from small_models import make_items, small_matcher, some_loss
from sremkit import ops
from sremkit.models.regional_compile import CompiledParts, compile_around_kernels

# On a CPU padding is trimmed in between, which breaks the graph; the compiler warns of the gradients there.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@pytest.fixture(autouse=True)
def _without_code_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's front end is what can fail here; code generation takes minutes."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))


def step(name: str, *, compiled: bool, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Logits, gradients and running estimates of one training step."""
    matcher = small_matcher(name, dtype=dtype).train()
    if compiled:
        matcher.compile_parts()
    logits = matcher(make_items(dtype=dtype).batch(name))
    some_loss(logits).backward()
    gradients = {key: p.grad for key, p in matcher.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **gradients, **dict(matcher.named_buffers())}


@pytest.mark.parametrize("name", ["saf", "sgr"])
def test_compiled_parts_give_the_same_step(name: str) -> None:
    right, found = step(name, compiled=False), step(name, compiled=True)
    torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-11)


def test_copies_and_files_hold_the_weights_and_nothing_compiled() -> None:
    matcher = small_matcher("saf").train()
    matcher.compile_parts()
    batch = make_items().batch("saf")
    logits = matcher(batch)
    for copied in (copy.deepcopy(matcher), pickle.loads(pickle.dumps(matcher))):
        assert not copied._compiled
        assert matcher._compiled
        torch.testing.assert_close(copied.load_state_dict(matcher.state_dict()) and copied(batch), logits)
        with torch.no_grad():
            copied.score.bias.add_(1.0)
        torch.testing.assert_close(matcher(batch), logits)  # its own weights are unchanged


@pytest.mark.skipif(not can_check("cpu"), reason="the kernels need Triton and TRITON_INTERPRET=1 on a CPU")
def test_parts_around_the_kernels_give_the_same_step_compiled() -> None:
    with ops.use("triton"):
        right, found = (step("saf", compiled=c, dtype=torch.float32) for c in (False, True))
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-6)


def test_every_part_is_a_method_and_is_compiled_in_training_only() -> None:
    calls = []
    matcher = small_matcher("saf")
    matcher.compile_parts()
    assert set(matcher.PARTS) == set(matcher._compiled)
    matcher._compiled = {name: lambda *args, name=name: calls.append(name) for name in matcher.PARTS}
    for name in matcher.PARTS:
        assert matcher.eval().part(name) == getattr(matcher, name)
        matcher.train().part(name)()
    assert calls == list(matcher.PARTS)


def test_without_kernels_nothing_is_compiled_around_them() -> None:
    matcher = small_matcher("sgraf")  # on the CPU
    assert not compile_around_kernels(matcher)
    assert all(not part._compiled for part in matcher.modules() if isinstance(part, CompiledParts))
