"""Node scores on a CPU: a linear layer that also returns the nodes, with their gradients added in one pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sremkit.ops.cpu import scores_and_nodes
from sremkit.ops.node_pooling import node_scores_reference

Loss = Callable[[Tensor, Tensor], Tensor]

#: Losses of the scores and of the nodes: of both, or of one of the two.
LOSSES: dict[str, Loss] = {
    "both": lambda scores, nodes: scores.square().sum() + (scores.unsqueeze(-1) * nodes).sin().sum(),
    "scores": lambda scores, nodes: scores.square().sum(),
    "nodes": lambda scores, nodes: nodes.sin().sum(),
}


def leaves() -> list[Tensor]:
    """Nodes (2, 3, 4, 5), weight and bias."""
    g = torch.Generator().manual_seed(0)
    shapes = [(2, 3, 4, 5), (1, 5), (1,)]
    return [torch.randn(s, generator=g, dtype=torch.float64).requires_grad_() for s in shapes]


@pytest.mark.parametrize("again", [False, True], ids=["once", "to be differentiated again"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_gradients_are_those_of_a_linear_layer(loss: Loss, again: bool) -> None:
    given = leaves()
    scores, nodes = scores_and_nodes(*given)
    expected = node_scores_reference(*given)
    torch.testing.assert_close(scores, expected)
    assert torch.equal(nodes, given[0])
    found = torch.autograd.grad(loss(scores, nodes), given, allow_unused=True, create_graph=again)
    right = torch.autograd.grad(loss(expected, given[0]), given, allow_unused=True)
    for mine, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_gradients_of_gradients_are_right(loss: Loss) -> None:
    assert torch.autograd.gradgradcheck(lambda *x: loss(*scores_and_nodes(*x)), leaves())


def test_one_node_by_hand() -> None:
    # t = 2 · 1 + 3 · 10 + 4 = 36; L = t + 5 x_1, so ∂x = (2 + 5, 3), ∂f = x, ∂b = 1.
    x, f, b = (torch.tensor(v, requires_grad=True) for v in ([[1.0, 10.0]], [[2.0, 3.0]], [4.0]))
    scores, nodes = scores_and_nodes(x, f, b)
    assert scores.item() == 36.0
    (scores.sum() + 5 * nodes[0, 0]).backward()
    assert [t.grad.flatten().tolist() for t in (x, f, b)] == [[7.0, 3.0], [1.0, 10.0], [1.0]]
