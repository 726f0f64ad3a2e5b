"""The checks of methods that support CUDA graphs: they find every kind of step that a graph would get wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from methods.replaying import (
    DEVICE,
    HostWaitsError,
    batch_number,
    check_it_never_waits,
    descend,
    losses_and_memory,
    refusing_to_wait,
    stand_in_for_a_device,
    started,
)
from sremkit.data.batch import Batch
from sremkit.methods import Forward, Method, TrainingContext
from sremkit.objectives import Loss


class Wrong(Method):
    """A method whose step does what a graph cannot see."""

    def __init__(self, spoil: Callable[[Wrong, Tensor], Tensor]) -> None:
        self.spoil = spoil
        self.steps = 0
        self.memory = torch.zeros(())

    def start(self, surroundings: TrainingContext) -> None:
        self.memory = torch.zeros((), device=surroundings.device)

    def loss(self, matcher: Forward, batch: Batch, *, warmup: bool) -> Loss:
        logits = matcher(batch)
        self.steps += 1
        return Loss(total=self.spoil(self, logits) + logits.square().sum(), parts={})

    def state_dict(self) -> dict[str, Tensor]:
        return {"memory": self.memory}


def writes_to_a_selection(method: Wrong, logits: Tensor) -> Tensor:
    some = logits * 1
    some[logits > 0] = 0.0
    return some.sum()


WAITING: dict[str, Callable[[Wrong, Tensor], Tensor]] = {
    "branches": lambda method, logits: logits.sum() if logits.max() > 0 else logits.mean(),
    "reads": lambda method, logits: logits.sum() * logits.mean().item(),
    "counts": lambda method, logits: logits.sum() * len((logits > 0).nonzero()),
    "selects": lambda method, logits: logits[logits > 0].sum(),
    "selects by name": lambda method, logits: logits.masked_select(logits > 0).sum(),
    "writes to a selection": writes_to_a_selection,
    "sends a number": lambda method, logits: logits.sum() * torch.tensor(2.0, device=logits.device),
    "sends rows": lambda method, logits: logits[[0, 1]].sum(),
    "leaves a number on the host": lambda method, logits: logits.sum() * torch.ones(()),
    "goes to the host": lambda method, logits: logits.cpu().sum(),
}


@pytest.mark.parametrize("spoil", WAITING.values(), ids=WAITING.keys())
def test_a_step_that_waits_is_found(spoil: Callable[[Wrong, Tensor], Tensor]) -> None:
    method = Wrong(lambda method, logits: logits.sum())
    check_it_never_waits(method)
    with stand_in_for_a_device():
        matcher, _ = started(method, DEVICE)
        step, batch = descend(matcher, method, warmup=False), batch_number(0).to(DEVICE)
        method.spoil = spoil
        with pytest.raises(HostWaitsError), refusing_to_wait():
            step(batch)


def forgets_its_memory(method: Wrong, logits: Tensor) -> Tensor:
    method.memory = method.memory + logits.detach().mean()  # a new tensor, which the tape does not read
    return logits.sum() * method.memory


STILL: dict[str, Callable[[Wrong, Tensor], Tensor]] = {
    "a counter": lambda method, logits: logits.sum() * method.steps,
    "a number of largest": lambda method, logits: logits.topk(max(1, 9 - method.steps), dim=1).values.sum(),
    "another tensor": forgets_its_memory,
}


@pytest.mark.parametrize("spoil", STILL.values(), ids=STILL.keys())
def test_a_step_that_python_changes_is_found(spoil: Callable[[Wrong, Tensor], Tensor]) -> None:
    def both(spoil: Callable[[Wrong, Tensor], Tensor]) -> list[Any]:
        return [losses_and_memory(Wrong(spoil), warmup=False, replayed=r) for r in (False, True)]

    def right(method: Wrong, logits: Tensor) -> Tensor:
        method.memory.add_(logits.detach().mean())
        return logits.sum() * method.memory

    torch.testing.assert_close(*both(right), rtol=0, atol=0)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(*both(spoil), rtol=1e-3, atol=1e-3)
