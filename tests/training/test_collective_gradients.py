"""Backward passes of collectives leave the incoming gradient unchanged: autograd may use it elsewhere too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from sremkit.training import distributed


@pytest.mark.parametrize("name", ["_GatherAndReduce", "_AllReduceSum", "_GatherReplicated"])
@pytest.mark.parametrize("transposed", [False, True], ids=["contiguous", "transposed"])
def test_backward_does_not_write_to_the_incoming_gradient(name: str, transposed: bool, monkeypatch) -> None:
    """`all_reduce` works in place; here it doubles, as with two processes of equal gradients."""
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.mul_(2))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    incoming = torch.arange(15.0).reshape(5, 3)
    if transposed:
        incoming = incoming.T.contiguous().T
    before = incoming.clone()
    result = getattr(distributed, name).backward(SimpleNamespace(sizes=[2, 3]), incoming)
    assert torch.equal(incoming, before)
    expected = {
        "_GatherAndReduce": 2 * before[2:],
        "_AllReduceSum": 2 * before,
        "_GatherReplicated": before[2:],
    }[name]
    assert torch.equal(result, expected)


def test_a_gradient_that_two_branches_share_reaches_both(monkeypatch) -> None:
    """`x + gather(x)` passes one gradient tensor to both branches."""
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.mul_(2))
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(distributed, "gather_lengths", lambda own, device: [own])
    x = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad((x + distributed._GatherAndReduce.apply(x)).sum(), x)
    assert gradient.tolist() == [3.0, 3.0, 3.0]  # 1 directly, 2 through the collective
