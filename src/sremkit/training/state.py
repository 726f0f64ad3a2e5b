"""The state of a run: its position in the schedule, and what a checkpoint holds, so that the next step is the same."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sremkit.config.recipes import MAX_EPOCHS, TrainingSettings
from sremkit.config.settings import from_table
from sremkit.methods import Method
from sremkit.methods.common.state_dicts import load_optimizer_tensors, optimizer_tensors, prefixed, without_prefix
from sremkit.models.matcher import Matcher
from sremkit.objectives.gather import gather_rows
from sremkit.training.metrics import PairStatistics
from sremkit.training.reporters import Observer
from sremkit.training.step import EMA


@dataclass
class Position:
    """How far a run has come, and the sums of its current epoch."""

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0  # updates so far
    best_score: float = -math.inf
    epochs_without_gain: int = 0  # since the warm-up
    sums: dict[str, float] = field(default_factory=dict)  # of the metrics of this epoch's batches
    train_seconds: float = 0.0
    filter_seconds: float = 0.0  # of the method before the first batch of the epoch
    warmup_epochs: int | None = None  # planned, if other than the settings'
    warmup_rsum: float | None = None  # validation at the end of the warm-up, during an attempt
    failed_attempts: int = 0  # to end the warm-up
    restarted_at: int = 0  # the step before which the model was initialised last

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Position:
        """The position in a checkpoint, of the right types; raises `ValueError` otherwise."""
        position = from_table(cls, facts, where="position")
        if not 0 <= position.step_in_epoch <= position.step or not 0 <= position.epoch <= 2 * MAX_EPOCHS:
            raise ValueError(f"its epoch is {position.epoch} and its step {position.step_in_epoch} of {position.step}")
        return position


class Schedule:
    """The epochs of a run. Their number is fixed; a warm-up that is extended takes its epochs from the rest."""

    def __init__(self, settings: TrainingSettings) -> None:
        self.settings = settings

    def epochs(self) -> int:
        """Number of epochs of the run, warm-up included."""
        return self.settings.warmup_epochs + self.settings.epochs

    def is_warmup(self, position: Position) -> bool:
        planned = position.warmup_epochs
        return position.epoch < (self.settings.warmup_epochs if planned is None else planned)

    def is_over(self, position: Position) -> bool:
        """Whether all epochs are trained, or patience is exhausted.

        Patience counts from the end of the warm-up, which need not improve the validation.
        """
        if position.epoch >= self.epochs():
            return True
        patience = self.settings.patience
        if patience is None or self.is_warmup(position):
            return False
        return position.epochs_without_gain >= patience

    def learning_rate(self, position: Position) -> float:
        decayed = position.epoch - self.settings.warmup_epochs >= self.settings.decay_after
        return self.settings.learning_rate * (self.settings.decay_factor if decayed else 1.0)


@dataclass(frozen=True)
class RunState:
    """The parts of a run that have a state, apart from its position. All but the generators are equal in all processes.

    Args:
        process: rank and number of processes.
    """

    matcher: Matcher
    optimizer: torch.optim.Optimizer
    method: Method
    statistics: PairStatistics
    ema: EMA | None
    observer: Observer | None
    device: torch.device
    process: tuple[int, int] = (0, 1)

    def tensors(self) -> dict[str, Tensor]:
        """To be called by all processes together: their generator states are gathered."""
        tensors = {
            **self._trained(),
            **prefixed("statistics", self.statistics.state_dict()),
            **self._generators("cpu", torch.get_rng_state()),
        }
        if self.device.type == "cuda":
            tensors |= self._generators("cuda", torch.cuda.get_rng_state(self.device))
        return tensors

    def trained_tensors(self) -> dict[str, Tensor]:
        """A copy on the CPU of what training changes: weights, optimizer, averaged weights and method."""
        return {name: t.detach().cpu().clone() for name, t in self._trained().items()}

    def load_trained(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `trained_tensors` copied."""
        self.matcher.load_state_dict(without_prefix("model", tensors))
        if self.ema is not None:
            self.ema.matcher.load_state_dict(without_prefix("ema", tensors))
        load_optimizer_tensors(self.optimizer, without_prefix("optimizer", tensors))
        self.method.load_state_dict(without_prefix("method", tensors))

    def facts(self, position: Position) -> dict[str, Any]:
        return {"position": vars(position), "observer": {} if self.observer is None else self.observer.state()}

    def load(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Position:
        """Restore every part; returns the position of the run."""
        self.load_trained(tensors)
        self.statistics.load_state_dict(without_prefix("statistics", tensors))
        if self.observer is not None:
            self.observer.load_state(facts["observer"])
        # A checkpoint of fewer processes has no generator for this one, which then stays as it was seeded.
        rank = self.process[0]
        if (name := _generator_name("cpu", rank)) in tensors:
            torch.set_rng_state(tensors[name])
        if self.device.type == "cuda" and (name := _generator_name("cuda", rank)) in tensors:
            torch.cuda.set_rng_state(tensors[name], self.device)
        return Position.from_facts(facts["position"])

    def _trained(self) -> dict[str, Tensor]:
        tensors = {
            **prefixed("model", self.matcher.state_dict()),
            **prefixed("optimizer", optimizer_tensors(self.optimizer)),
            **prefixed("method", self.method.state_dict()),
        }
        return tensors if self.ema is None else tensors | prefixed("ema", self.ema.matcher.state_dict())

    def _generators(self, kind: str, own: Tensor) -> dict[str, Tensor]:
        world = self.process[1]
        states = own[None] if world == 1 else gather_rows(own[None].to(self.device), [1] * world).cpu()
        return {_generator_name(kind, rank): state for rank, state in enumerate(states)}


def seed_generators(seed: int, rank: int) -> None:
    """Seed the generators of this process: each has its own stream, so that dropout masks differ between processes."""
    torch.manual_seed(seed if rank == 0 else int(np.random.SeedSequence([seed, rank]).generate_state(1)[0]))


def _generator_name(kind: str, rank: int) -> str:
    return f"generator/{kind}" if rank == 0 else f"generator/{kind}-{rank}"
