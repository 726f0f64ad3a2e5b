"""How well a method divides right pairs from wrong ones, and re-matches texts: per epoch, against the ground truth.

Wrong pairs are the positive class, as in `detection.py`. A pair is predicted to be wrong if the method does not select
it in both directions, or re-matches its text. Pairs are ranked by the selection first and by the weight among equals.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.evaluation.detection import detection_metrics
from sremkit.evaluation.noise_observer import NoiseObserver
from sremkit.objectives import Loss
from sremkit.objectives.terms import PairReport
from sremkit.training.metrics import both_directions


class DivisionObserver(NoiseObserver):
    """A `NoiseObserver` that also evaluates the division of each epoch. For runs that are not resumed.

    Args:
        true_image: (num_pairs,) the image that each training text belongs to.
        given_image: (num_pairs,) the image that it was given with.
    """

    def __init__(self, true_image: np.ndarray, given_image: np.ndarray) -> None:
        self.is_noisy = true_image != given_image
        super().__init__(true_image)

    def _reset(self) -> None:
        super()._reset()
        self.clean = torch.zeros(len(self.is_noisy), dtype=torch.bool)
        self.score = torch.full((len(self.is_noisy),), float("nan"))  # NaN before a report on the pair
        self.rematched = torch.zeros(2)  # texts with their own image, all

    def step(self, batch: Batch, loss: Loss, pull: Tensor | None = None) -> None:
        super().step(batch, loss, pull)
        report = loss.report
        if report is None:
            return
        pair_id = batch.pair_id.cpu()
        if report.rematched is not None:
            image = report.rematched
            right = (image == self.true_image[batch.pair_id]) & (image >= 0)
            self.rematched += torch.stack([right.sum(), (image >= 0).sum()]).cpu()
        if report.clean is not None:
            self.clean[pair_id], self.score[pair_id] = _verdicts(report)

    def finish_epoch(self) -> dict[str, float]:
        """The ratios of the epoch, and "division_precision", "division_recall", "division_auroc", "rematched_right"."""
        division = {}
        known = ~self.score.isnan().numpy()
        if known.any():
            found = detection_metrics(
                self.is_noisy[known], self.score.numpy()[known], verdict=~self.clean.numpy()[known]
            )
            division = {f"division_{name}": found[name] for name in ("precision", "recall", "auroc")}
        right, total = self.rematched.tolist()
        if total > 0:
            division["rematched_right"] = right / total
        return {**super().finish_epoch(), **division}


def _verdicts(report: PairReport) -> tuple[Tensor, Tensor]:
    """Whether each pair is taken as right as given, (b,) bool, and the score that ranks pairs, (b,); on the CPU."""
    assert report.clean is not None
    clean = torch.stack(both_directions(report.clean)).all(dim=0)
    weight = clean.float() if report.weight is None else torch.stack(both_directions(report.weight)).mean(dim=0).float()
    if report.rematched is not None:
        kept = report.rematched < 0
        clean, weight = clean & kept, weight * kept
    return clean.cpu(), ((clean.float() + weight) / 2).cpu()
