"""Who watches a training: observers look at its batches, reporters show how far it is."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.objectives import Loss


class Observer(Protocol):
    """Watches batches from outside, such as evaluation that knows which pairs are wrong."""

    def step(self, batch: Batch, terms: Loss, pull: Tensor | None) -> None: ...

    def finish_epoch(self) -> dict[str, float]: ...

    def state(self) -> dict[str, float]: ...

    def load_state(self, state: dict[str, float]) -> None: ...


class Reporter(Protocol):
    """Shows progress."""

    def step(self, epoch: int, step: int, steps: int, means: dict[str, float]) -> None: ...

    def epoch(self, row: dict[str, Any]) -> None: ...

    def warn(self, sentence: str) -> None: ...

    def say(self, sentence: str) -> None:
        """Something worth a line that is no trouble. Called only where the length of the warm-up is open."""

    def expect(self, epochs: int, *, at_most: bool) -> None:
        """How many epochs there will be in all. Called only where that was open, before and once it is known."""
