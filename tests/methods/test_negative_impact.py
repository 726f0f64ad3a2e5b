"""NPC's weight against loops, by hand, and against wrong twins."""

from __future__ import annotations

import math

import pytest
import torch

from oracles import npc as oracle
from sremkit.methods.npc import negative_impact_weight


def case(b: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    before, after = torch.rand(2, 2, b, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    return before, after


def expected() -> list[float]:
    before, after = case()
    return [oracle.weight(before[:, i].tolist(), after[:, i].tolist()) for i in range(12)]


def test_it_matches_the_oracle() -> None:
    assert negative_impact_weight(*case()).tolist() == pytest.approx(expected(), rel=1e-10)
    assert 0 < expected().count(1.0) < 12


def test_by_hand() -> None:
    # Halved losses: r = 2, weight 1. One doubled, one the same: r = 3/4. Nothing changed: 1. Both at 0: no change.
    before = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    after = torch.tensor([[0.5, 2.0, 1.0, 0.0], [0.5, 1.0, 1.0, 0.0]], dtype=torch.float64)
    assert negative_impact_weight(before, after).tolist() == pytest.approx([1.0, math.tanh(0.75), 1.0, 1.0], rel=1e-12)


def test_a_more_harmful_step_gives_a_smaller_weight() -> None:
    after = torch.linspace(1.1, 50, 20, dtype=torch.float64).expand(2, 20)
    weight = negative_impact_weight(torch.ones(2, 20, dtype=torch.float64), after)
    assert (weight.diff() < 0).all()
    assert ((weight > 0) & (weight < 1)).all()


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="must both be"):
        negative_impact_weight(torch.ones(2, 3), torch.ones(2, 4))


TWINS = {
    "inverted ratio": lambda b, a: negative_impact_weight(a, b),
    "ratio of the means": lambda b, a: negative_impact_weight(b.mean(0, keepdim=True), a.mean(0, keepdim=True)),
    "tanh everywhere": lambda b, a: (b / a).mean(0).tanh(),
    "cut at 1 without tanh": lambda b, a: (b / a).mean(0).clamp(max=1),
    "by image only": lambda b, a: negative_impact_weight(b[:1], a[:1]),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_wrong_twins(twin) -> None:
    assert twin(*case()).tolist() != pytest.approx(expected(), rel=1e-6)
