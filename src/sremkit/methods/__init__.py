"""How an epoch goes: one file a method. The training loop runs a method and never names one."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.objectives import Loss
from sremkit.registry import Registry


class Scorer(Protocol):
    """A matcher as a method sees it: a batch in, its logits out."""

    def __call__(self, batch: Batch) -> Tensor: ...


class Method(Protocol):
    """A way to learn from pairs of which some are wrong."""

    def start(self, num_pairs: int, device: torch.device) -> None:
        """Called once before the first batch, or before the state of a stopped run is loaded."""

    def loss(self, matcher: Scorer, batch: Batch, *, warmup: bool) -> Loss:
        """The loss of one batch; `warmup` is true in the epochs that only prepare the model."""

    def finish_epoch(self) -> None:
        """Called after the last batch of each epoch."""

    def state_dict(self) -> dict[str, Tensor]:
        """What the method remembers between batches, so that a stopped run can go on exactly."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


class Stateless:
    """For methods that remember nothing between batches."""

    def start(self, num_pairs: int, device: torch.device) -> None: ...

    def finish_epoch(self) -> None: ...

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state:
            raise ValueError(f"this method keeps no state, but the checkpoint holds {sorted(state)}")


METHODS: Registry[type[Method]] = Registry("method", package="sremkit.methods")


def build_method(name: str, **options: Any) -> Method:
    """Build a method by its name: `build_method("srem", margin=0.2)`."""
    return METHODS[name](**options)


__all__ = ["METHODS", "Method", "Scorer", "Stateless", "build_method"]
