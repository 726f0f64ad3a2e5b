"""One step of the optimiser: half precision that forgets between steps, clipping, and what cannot be compiled."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from small_models import SMALL, make_items, small_matcher
from sremkit.config.recipes import TrainingSettings
from sremkit.data.batch import Batch
from sremkit.errors import UserError
from sremkit.methods import build_method
from sremkit.models import Matcher, build_matcher
from sremkit.objectives import Loss
from sremkit.training.step import OptimizerStep, build_forward

CPU = torch.device("cpu")


def losses(steps: int, *, inside_another_region: bool) -> list[Tensor]:
    matcher = small_matcher("dual", dtype=torch.float32)
    batch = make_items(dtype=torch.float32).batch("dual")
    settings = TrainingSettings(precision="bf16", learning_rate=0.05)
    step = OptimizerStep(matcher, build_method("infonce"), settings, device=CPU)
    with torch.autocast("cpu", torch.bfloat16) if inside_another_region else nullcontext():
        return [step(batch, warmup=False).total for _ in range(steps)]


def test_a_step_sees_the_weights_that_the_step_before_left_even_inside_another_region_of_half_precision() -> None:
    alone, inside = losses(4, inside_another_region=False), losses(4, inside_another_region=True)
    assert alone[-1] < alone[0] - 0.1
    torch.testing.assert_close(inside, alone, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("others", [{"grad_cache_chunk_size": 4}, {}], ids=["pieces", "processes"])
def test_compiling_what_is_joined_or_cut_is_refused(others: dict) -> None:
    settings = TrainingSettings(compile=True, **others)
    with pytest.raises(
        UserError, match=r"training\.compile works in one process, without training\.grad_cache_chunk_size"
    ):
        build_forward(small_matcher("dual"), settings, world=1 if others else 2)


class Lopsided:
    """A method whose loss has the slope 1000 in every weight of the first network, and 0.001 in the second's."""

    def loss(self, matcher: object, batch: Batch, *, warmup: bool) -> Loss:
        slopes = zip((1000.0, 0.001), self.networks, strict=True)
        return Loss(sum(slope * p.sum() for slope, network in slopes for p in network.parameters()), {})

    def __init__(self, networks: list[Matcher]) -> None:
        self.networks = networks


def test_the_gradients_of_two_networks_are_clipped_apart() -> None:
    """One whose gradient is enormous must not stop the other from learning."""
    member = {"name": "dual", "options": SMALL["dual"]}
    twins = build_matcher("two-networks", member=member)
    step = OptimizerStep(twins, Lopsided(twins.networks()), TrainingSettings(max_grad_norm=2.0), device=CPU)
    step(make_items(dtype=torch.float32).batch("dual"), warmup=False)
    first, second = (torch.cat([p.grad.flatten() for p in n.parameters()]) for n in twins.networks())
    assert first.norm().item() == pytest.approx(2.0, rel=1e-4)
    torch.testing.assert_close(second, torch.full_like(second, 0.001))


def graphs() -> int:
    """Results on the heap that still know how they were computed."""
    return sum(type(x) is Tensor and x.grad_fn is not None for x in gc.get_objects())


@pytest.mark.parametrize(("backbone", "method"), [("dual", "srem"), ("dual", "infonce"), ("vsrn", "srem")])
def test_a_step_leaves_nothing_of_its_graph_behind(backbone: str, method: str) -> None:
    """What is kept of a captured step would keep all gradients on the streams that it was captured on."""
    matcher = small_matcher(backbone, dtype=torch.float32)
    step = OptimizerStep(matcher, build_method(method), TrainingSettings(), device=CPU)
    batch = make_items(dtype=torch.float32).batch(backbone)
    before = graphs()
    result = step(batch, warmup=False)
    assert graphs() == before
    assert bool(result.extra_losses) is (backbone == "vsrn")  # which has a loss of its own
    assert torch.isfinite(result.total)
