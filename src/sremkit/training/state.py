"""Everything that decides how a run goes on, as tensors and facts, and back.

Weights, optimiser, generators, the method's memory, the epoch's sums: a run that is given all of it makes the same
next step as the one that it was taken from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sremkit.methods import Method
from sremkit.models.matcher import Matcher
from sremkit.training.average import AveragedWeights
from sremkit.training.checkpoint import load_optimizer_tensors, optimizer_tensors, prefixed, without_prefix
from sremkit.training.schedule import Position
from sremkit.training.statistics import PairStatistics
from sremkit.training.watching import Observer


@dataclass(frozen=True)
class RunState:
    """The parts of a run that remember something, beside its position."""

    matcher: Matcher
    optimizer: torch.optim.Optimizer
    method: Method
    statistics: PairStatistics
    average: AveragedWeights | None
    observer: Observer | None
    device: torch.device

    def tensors(self) -> dict[str, Tensor]:
        tensors = {
            **prefixed("model", self.matcher.state_dict()),
            **prefixed("optimizer", optimizer_tensors(self.optimizer)),
            **prefixed("method", self.method.state_dict()),
            **prefixed("statistics", self.statistics.state_dict()),
            "generator/cpu": torch.get_rng_state(),
        }
        if self.average is not None:
            tensors |= prefixed("average", self.average.matcher.state_dict())
        if self.device.type == "cuda":
            tensors["generator/cuda"] = torch.cuda.get_rng_state(self.device)
        return tensors

    def facts(self, position: Position) -> dict[str, Any]:
        return {
            "position": vars(position),
            "observer": {} if self.observer is None else self.observer.state(),
        }

    def load(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Position:
        """Give every part its memory back; returns where the run was."""
        self.matcher.load_state_dict(without_prefix("model", tensors))
        if self.average is not None:
            self.average.matcher.load_state_dict(without_prefix("average", tensors))
        load_optimizer_tensors(self.optimizer, without_prefix("optimizer", tensors))
        self.method.load_state_dict(without_prefix("method", tensors))
        self.statistics.load_state_dict(without_prefix("statistics", tensors))
        if self.observer is not None:
            self.observer.load_state(facts["observer"])
        torch.set_rng_state(tensors["generator/cpu"])
        if self.device.type == "cuda" and "generator/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["generator/cuda"], self.device)
        return Position(**facts["position"])
