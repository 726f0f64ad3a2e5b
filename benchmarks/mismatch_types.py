"""Correct, shuffled and subtly wrong pairs of scenes: their share of the training, and detection of each type."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.data.generated.scenes import SceneTruth
from sremkit.evaluation import detection_metrics
from sremkit.objectives import Loss

TYPES = ("correct", "shuffled", "subtle")
CORRECT, SHUFFLED, SUBTLE = range(3)


class TypeObserver:
    """Sums, over an epoch, what a method did with the pairs of each type. The training does not see it.

    Args:
        pair_type: (num_pairs,) CORRECT, SHUFFLED or SUBTLE for each training pair.
    """

    supports_cuda_graphs = True

    def __init__(self, pair_type: np.ndarray) -> None:
        self.pair_type = torch.as_tensor(pair_type)
        self.weight = torch.full((len(pair_type),), float("nan"))  # the last reported weight of each pair
        self.types = torch.arange(len(TYPES))
        self.sums = torch.zeros(4, len(TYPES), dtype=torch.float64)  # pairs, selected, weight, pull
        self.reports = torch.zeros(2)  # batches with a report of the selection, and of weights

    def step(self, batch: Batch, loss: Loss, pull: Tensor | None = None) -> None:
        """Add one batch; a report of both directions counts half each."""
        device = batch.pair_id.device
        if self.sums.device != device:
            moved = (t.to(device) for t in (self.pair_type, self.types, self.weight, self.sums, self.reports))
            self.pair_type, self.types, self.weight, self.sums, self.reports = moved
        one_hot = (self.pair_type[batch.pair_id][:, None] == self.types).double()  # (b, 3)
        selected, weight = (
            _mean_of_directions(None if loss.report is None else getattr(loss.report, name))
            for name in ("clean", "weight")
        )
        for reported, x in zip(self.reports, (selected, weight), strict=True):
            reported.add_(x is not None)
        if weight is not None:
            self.weight[batch.pair_id] = weight.float()
        none = one_hot.new_zeros(len(one_hot))
        values = [none + 1, *(none if x is None else x.double() for x in (selected, weight, pull))]
        self.sums += torch.stack(values) @ one_hot  # (4, 3)

    def finish_epoch(self) -> dict[str, float]:
        """For each type the share that was selected, the mean weight, where reported, and its share of all pull."""
        pairs, selected, weight, pull = self.sums
        shares: dict[str, Tensor] = {}
        selects, weighs = self.reports.tolist()
        if selects:
            shares["selected"] = selected / pairs
        if weighs:
            shares["weight"] = weight / pairs
        if pull.sum() > 0:
            shares["pull"] = pull / pull.sum()
        self.sums.zero_()
        self.reports.zero_()
        return {
            f"{name}_{pair_type}": value
            for name, values in shares.items()
            for pair_type, value in zip(TYPES, values.tolist(), strict=True)
        }

    def state(self) -> dict[str, float]:
        reports = dict(zip(("selects", "weighs"), self.reports.tolist(), strict=True))
        return {str(k): value for k, value in enumerate(self.sums.flatten().tolist())} | reports

    def load_state(self, state: dict[str, float]) -> None:
        sums = [state[str(k)] for k in range(self.sums.numel())]
        self.sums.copy_(torch.tensor(sums, dtype=torch.float64).view(-1, len(TYPES)))
        self.reports.copy_(torch.tensor([state["selects"], state["weighs"]]))


def _mean_of_directions(values: Tensor | tuple[Tensor, Tensor] | None) -> Tensor | None:
    if values is None:
        return None
    return torch.stack([v.double() for v in values]).mean(dim=0) if isinstance(values, tuple) else values


def types_of_pairs(truth: SceneTruth) -> np.ndarray:
    """(m,) CORRECT, SHUFFLED or SUBTLE."""
    return np.where(truth.is_subtle, SUBTLE, np.where(truth.is_noisy, SHUFFLED, CORRECT))


def aurocs(score: np.ndarray, pair_type: np.ndarray) -> dict[str, float]:
    """AUROC of a score, low for mismatches, for each type of mismatch against correct pairs."""
    measured = {}
    for mismatch in (SHUFFLED, SUBTLE):
        chosen = (pair_type == mismatch) | (pair_type == CORRECT)
        metrics = detection_metrics(pair_type[chosen] == mismatch, score[chosen])
        measured[f"{TYPES[mismatch]}_auroc"] = metrics["auroc"]
    return measured
