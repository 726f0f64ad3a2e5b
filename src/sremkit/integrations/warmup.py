"""The warm-up inside of a training loop that other code runs: when it ends, and a sentence that says so."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from sremkit.objectives import Terms
from sremkit.objectives.warmup import WarmupMonitor


class Warmup(Protocol):
    """Decides whether the next batch belongs to the warm-up, such as `sremkit.WarmupMonitor`."""

    @property
    def warmup(self) -> bool: ...

    def update(self, terms: Terms) -> None:
        """Called after each batch."""

    def message(self) -> str:
        """The state in words."""

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


class WarmupSteps:
    """A warm-up of a fixed number of batches.

    Args:
        steps: number of batches; 0 for no warm-up.
    """

    def __init__(self, steps: int) -> None:
        if steps < 0:
            raise ValueError(f"a warm-up has 0 or more batches, got {steps}")
        self.steps = steps
        self.done_steps = 0

    @property
    def warmup(self) -> bool:
        return self.done_steps < self.steps

    def update(self, terms: Terms) -> None:
        self.done_steps += 1

    def message(self) -> str:
        return f"{self.done_steps} batches"

    def state_dict(self) -> dict[str, Tensor]:
        return {"done_steps": Tensor([self.done_steps])}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.done_steps = int(state["done_steps"])


def as_warmup(warmup: Warmup | int | None) -> Warmup:
    """A `WarmupMonitor` by default, a fixed number of batches for an integer."""
    if warmup is None:
        return WarmupMonitor()
    return WarmupSteps(warmup) if isinstance(warmup, int) else warmup


class WarmupReport:
    """States once when a warm-up is over, and when training returns to it.

    .. code-block:: python

        if (sentence := report.changed()) is not None:
            print(sentence)
    """

    def __init__(self, warmup: Warmup) -> None:
        self.warmup = warmup
        self._was_warmup = warmup.warmup

    def changed(self) -> str | None:
        """A sentence if the state has changed since the last call."""
        if self.warmup.warmup == self._was_warmup:
            return None
        self._was_warmup = self.warmup.warmup
        state = "training returns to the warm-up" if self._was_warmup else "the warm-up is over"
        return f"{state}: {self.warmup.message()}"
