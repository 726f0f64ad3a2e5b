"""torch.compile takes the whole objective as one graph; its custom operator for CPUs."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

from logit_cases import random_logits
from sremkit import SREM
from sremkit.objectives.fast import autograd, fused
from sremkit.objectives.fast.autograd import _evaluate_op, evaluate_custom_op
from sremkit.objectives.logits import distinct_images

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::UserWarning:torch")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def assert_compiled_equals_eager(criterion: SREM, size: int, compiled=None, **options):
    compiled = torch.compile(criterion, fullgraph=True) if compiled is None else compiled
    one, two = (random_logits(size).float().requires_grad_() for _ in range(2))
    expected, found = criterion(one, **options), compiled(two, **options)
    expected.total.backward()
    found.total.backward()
    torch.testing.assert_close(two.grad, one.grad, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(found.total, expected.total, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.parts, expected.parts, rtol=1e-5, atol=1e-7)
    for name in ("energy_i2t", "clean_t2i", "weight_i2t", "active_t2i"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-6)
    return compiled


def test_the_objective_is_one_graph() -> None:
    compiled = assert_compiled_equals_eager(SREM(), 16)
    assert_compiled_equals_eager(SREM(), 11, compiled)  # the last batch of an epoch is smaller


def test_the_objective_with_repeated_images_is_one_graph() -> None:
    assert_compiled_equals_eager(SREM(), 16, image_ids=torch.arange(16) // 2, warmup=True)


def test_the_computation_itself_is_one_graph_when_the_compiler_traces_it(monkeypatch) -> None:
    """As on a GPU. On a CPU the computation is a custom op, which is replaced here."""
    monkeypatch.setattr(autograd, "evaluate_custom_op", fused.evaluate)
    assert_compiled_equals_eager(SREM(), 16, image_ids=torch.arange(16) // 2)


def test_the_printed_reading_is_one_graph() -> None:
    assert_compiled_equals_eager(SREM(reading="printed"), 8)


SWITCHES = ["filtration", "weighting", "complementary"]


@pytest.mark.parametrize("switch", SWITCHES)
def test_the_custom_op_equals_the_function(switch: str) -> None:
    F = random_logits(9).float()
    valid = distinct_images(torch.arange(9) // 2)
    config = SREM(**{switch: False}, sharpness=2.0)._config(warmup=False)
    expected = fused.evaluate(F, valid, config, with_gradient=True)
    found = evaluate_custom_op(F, valid, config, with_gradient=True)
    for one, two in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert torch.equal(one, two)


def test_the_custom_op_passes_opcheck() -> None:
    config = [float(x) for x in SREM()._config(warmup=False)]
    valid = torch.eye(6, dtype=torch.bool) | (torch.arange(36).reshape(6, 6) % 5 > 0)
    for with_gradient in (True, False):
        for mask in (None, valid):
            arguments = (random_logits(6).float(), mask, config, with_gradient)
            torch.library.opcheck(_evaluate_op, arguments)
