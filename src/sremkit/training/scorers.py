"""The matcher as a method calls it: whole, compiled, in pieces, or joined over processes; and what pulled in it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.errors import UserError
from sremkit.models.compiling import compile_around_kernels
from sremkit.models.matcher import Matcher
from sremkit.recipes import TrainingSettings
from sremkit.training.distributed import JoinedMatcher
from sremkit.training.pieces import PiecewiseMatcher


class ScorerWithLosses(Protocol):
    """A scorer that leaves the backbone's own losses of the last call beside."""

    extra: dict[str, Tensor]

    def __call__(self, batch: Batch) -> Tensor: ...


class WholeMatcher(torch.nn.Module):
    """A matcher in one process, all at once."""

    def __init__(self, matcher: Matcher, *, compiled: bool) -> None:
        super().__init__()
        self.extra: dict[str, Tensor] = {}
        self._score = matcher.logits_and_losses
        if compiled and not compile_around_kernels(matcher):
            self._score = torch.compile(matcher.logits_and_losses)

    def forward(self, batch: Batch) -> Tensor:
        logits, self.extra = self._score(batch)
        return logits


class WatchedScorer:
    """Remembers the logits of the last call, so that one can ask what the loss did to each pair."""

    def __init__(self, scorer: ScorerWithLosses) -> None:
        self._scorer = scorer
        self._logits: Tensor | None = None

    def __call__(self, batch: Batch) -> Tensor:
        logits = self._scorer(batch)
        if logits.requires_grad:
            logits.retain_grad()
            self._logits = logits
        return logits

    def take_extra(self) -> dict[str, Tensor]:
        """The backbone's own losses of the last call, which are not kept here."""
        extra, self._scorer.extra = self._scorer.extra, {}
        return extra

    def take_pull(self) -> Tensor | None:
        """How strongly the last backward pass pulled each given pair together: max(0, -dL/dF_ii), (b,).

        Of two networks the sum. None where the method did not go through the scorer.
        """
        logits, self._logits = self._logits, None
        if logits is None or logits.grad is None:
            return None
        pull = (-logits.grad.diagonal(dim1=-2, dim2=-1)).clamp_min(0)  # (b,) or (2, b)
        return pull if pull.ndim == 1 else pull.sum(dim=0)


def scorer_for(matcher: Matcher, settings: TrainingSettings, *, world: int) -> WatchedScorer:
    """The scorer that these settings and this number of processes ask for."""
    if world > 1 and len(matcher.networks()) > 1:
        raise UserError("a method that trains two networks works in one process; start it without torchrun")
    if settings.compile and (world > 1 or settings.micro_batch is not None):
        raise UserError("training.compile works in one process, without training.micro_batch; leave it out")
    if settings.micro_batch is not None:
        if world > 1 or len(matcher.networks()) > 1:
            raise UserError(
                "training.micro_batch works with one network in one process; use smaller batches instead"
            )
        return WatchedScorer(PiecewiseMatcher(matcher, settings.micro_batch))
    if world > 1:
        return WatchedScorer(JoinedMatcher(matcher))
    return WatchedScorer(WholeMatcher(matcher, compiled=settings.compile))
