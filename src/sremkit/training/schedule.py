"""Where a run is, and what follows from it: warm-up or not, at which rate, how long still."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sremkit.recipes import TrainingSettings


@dataclass
class Position:
    """Where a run is, and what it has seen so far in this epoch."""

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0  # updates made in all
    best_score: float = -math.inf
    epochs_without_gain: int = 0  # since the warm-up
    sums: dict[str, float] = field(default_factory=dict)  # of this epoch's batches
    train_seconds: float = 0.0
    filter_seconds: float = 0.0  # what the method took before the epoch's first batch
    warmup_epochs: int | None = None  # after so many the method said that they suffice


class Schedule:
    """The epochs of a run, counted from its warm-up's end, wherever that came to lie."""

    def __init__(self, settings: TrainingSettings) -> None:
        self.settings = settings

    def warmup_epochs(self, position: Position) -> int:
        """How many there were; while the warm-up goes on, how many there will be at most."""
        ended = position.warmup_epochs
        return self.settings.warmup_epochs if ended is None else ended

    def epochs(self, position: Position) -> int:
        """How many epochs the run has in all; while the warm-up goes on, at most."""
        return self.warmup_epochs(position) + self.settings.epochs

    def is_warmup(self, position: Position) -> bool:
        return position.epoch < self.warmup_epochs(position)

    def is_over(self, position: Position) -> bool:
        """Whether all epochs are made, or patience is at its end.

        The warm-up prepares the training and need not gain anything, so patience begins after it.
        """
        if position.epoch >= self.epochs(position):
            return True
        patience = self.settings.patience
        if patience is None or self.is_warmup(position):
            return False
        return position.epochs_without_gain >= patience

    def learning_rate(self, position: Position) -> float:
        decayed = position.epoch - self.warmup_epochs(position) >= self.settings.decay_after
        return self.settings.learning_rate * (self.settings.decay_factor if decayed else 1.0)
