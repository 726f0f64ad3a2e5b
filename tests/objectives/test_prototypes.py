"""Prototypes from neighbours and their loss against loops, by hand, and against wrong twins."""

from __future__ import annotations

import math

import pytest
import torch

from oracles import in2r as oracle
from sremkit.objectives.prototypes import mean_prototype, neighbour_values, prototype_loss


def unit_vectors(n: int, seed: int) -> torch.Tensor:
    vectors = torch.randn(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(vectors, dim=1)


def case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return unit_vectors(5, 0), unit_vectors(9, 1), unit_vectors(9, 2)


@pytest.mark.parametrize("k", [1, 3])
def test_prototypes_and_their_loss_match_the_oracle(k: int) -> None:
    queries, keys, values = case()
    found = mean_prototype(neighbour_values(queries, keys, values, num_neighbours=k))
    expected = oracle.prototypes(queries.tolist(), keys.tolist(), values.tolist(), k)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    loss = oracle.prototype_loss(queries.tolist(), expected, 0.2)
    assert prototype_loss(queries, found, temperature=0.2).item() == pytest.approx(loss, rel=1e-10)


def test_by_hand() -> None:
    # The query lies on the first axis; keys 0 and 2 are nearest, with the two axes as values: their mean, of length 1.
    keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]], dtype=torch.float64)
    values = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    found = mean_prototype(neighbour_values(keys[:1], keys, values, num_neighbours=2))
    assert found.flatten().tolist() == pytest.approx([math.sqrt(0.5)] * 2, rel=1e-12)
    # One query is certain of its one prototype.
    assert prototype_loss(keys[:1], found, temperature=0.1).item() == pytest.approx(0.0, abs=1e-12)


def test_more_neighbours_than_the_memory_holds_are_all_of_it() -> None:
    queries, keys, values = case()
    assert neighbour_values(queries, keys, values, num_neighbours=50).shape == (5, 9, 4)
    with pytest.raises(ValueError, match="same pairs; got 9 and 8"):
        neighbour_values(queries, keys, values[:8], num_neighbours=2)
    with pytest.raises(ValueError, match="temperature must be positive"):
        prototype_loss(queries, queries, temperature=0.0)


def test_gradients_reach_queries_and_not_the_memory() -> None:
    queries, keys, values = (x.requires_grad_() for x in case())
    found = neighbour_values(queries, keys, values, num_neighbours=2)
    assert not found.requires_grad
    assert torch.autograd.gradcheck(lambda q: prototype_loss(q, mean_prototype(found), temperature=0.5), (queries,))


TWINS = {
    "farthest": lambda q, k, v: mean_prototype(neighbour_values(-q, k, v, num_neighbours=3)),
    "across modalities": lambda q, k, v: mean_prototype(neighbour_values(q, v, k, num_neighbours=3)),
    "keys for values": lambda q, k, _: mean_prototype(neighbour_values(q, k, k, num_neighbours=3)),
    "one neighbour": lambda q, k, v: mean_prototype(neighbour_values(q, k, v, num_neighbours=1)),
    "not of unit length": lambda q, k, v: neighbour_values(q, k, v, num_neighbours=3).mean(1),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_wrong_twins(twin) -> None:
    queries, keys, values = case()
    expected = oracle.prototypes(queries.tolist(), keys.tolist(), values.tolist(), 3)
    assert twin(queries, keys, values).flatten().tolist() != pytest.approx(
        [x for row in expected for x in row], rel=1e-6
    )
