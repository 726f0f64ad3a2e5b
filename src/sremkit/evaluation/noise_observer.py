"""The effect of wrong pairs on training, from the ground truth: wrong pairs among the selected ones, noisy gradients,
and how well a method divides right pairs from wrong ones.

The paper's noisy-gradient ratio is the share of the positive gradients of L_w that falls on wrong pairs:

    ratio = sum of w over wrong pairs / sum of w over all pairs,   w the weight of a pair's own score in L_w

Only pairs that are selected as clean and inside the hinge have such a gradient. Both directions are summed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.data.pairs import MISSING
from sremkit.evaluation.detection import detection_metrics
from sremkit.objectives import Loss, PairReport
from sremkit.objectives.terms import both_directions


def noisy_gradient_ratio(loss: Loss, is_noisy: Tensor) -> float:
    """The ratio of one batch, from the report of a loss and the ground truth (b,); 0 without any gradient."""
    noisy, total = positive_gradients(loss.report, is_noisy).tolist()
    return noisy / total if total > 0 else 0.0


def positive_gradients(report: PairReport | None, is_noisy: Tensor) -> Tensor:
    """Positive gradients (2,) of one batch: of wrong pairs, and of all. Zero if the report has no weights.

    Over many batches, the ratio is that of their sums.
    """
    if report is None or report.active is None or report.weight is None:
        return torch.zeros(2, dtype=torch.float64, device=is_noisy.device)
    pairs = zip(_directions(report.active), _directions(report.applied_weight()), strict=True)
    pull = torch.stack([active * weight for active, weight in pairs]).sum(dim=0).double()  # (b,)
    return torch.stack([(pull * is_noisy).sum(), pull.sum()])


class NoiseObserver:
    """Observes training with the ground truth, which it does not pass on. Metrics are computed per epoch.

    Args:
        true_image: (num_pairs,) the image that each training text belongs to. A pair is wrong if its text is paired
            with another image, in the data or by the method.
        changed: (num_pairs,) bool: texts that are wrong with every image, because their words were changed.
    """

    supports_cuda_graphs = True

    def __init__(self, true_image: np.ndarray, changed: np.ndarray | None = None) -> None:
        self.true_image = torch.as_tensor(true_image)
        if changed is not None:
            self.true_image = torch.where(torch.as_tensor(changed), MISSING, self.true_image)
        # Of wrong pairs and of all; selected pairs are counted in both directions.
        self.selected = torch.zeros(2)
        self.pull = torch.zeros(2, dtype=torch.float64)
        self.gradients = torch.zeros(2, dtype=torch.float64)
        self.reports_gradients = False

    def step(self, batch: Batch, loss: Loss, pull: Tensor | None = None) -> None:
        """Add one batch. All sums stay on the device and are changed in place, so that CUDA graphs can replay it.

        Args:
            pull: (b,) how strongly the loss pulled each given pair together; available for every method.
        """
        if self.true_image.device != batch.pair_id.device:
            self._move_to(batch.pair_id.device)
        wrong = self.true_image[batch.pair_id] != batch.image_id
        if pull is not None:
            pull = pull.double()
            self.pull += torch.stack([(pull * wrong).sum(), pull.sum()])
        report = loss.report
        if report is not None and report.active is not None:
            self.gradients += positive_gradients(report, wrong)
            self.reports_gradients = True  # by this method; it is not forgotten, because a replay does not set it again
        if report is not None and report.clean is not None:
            clean = torch.stack(_directions(report.clean))  # (directions, b)
            self.selected += torch.stack([(clean & wrong).sum(), clean.sum()]).float()

    def finish_epoch(self) -> dict[str, float]:
        """The ratios of the epoch: of the pull for every method, the others for methods that select pairs."""
        ratios = {"noisy_pull_ratio": self.pull.tolist(), "selected_wrong": self.selected.tolist()}
        metrics = {name: wrong / total for name, (wrong, total) in ratios.items() if total > 0}
        if self.reports_gradients and "selected_wrong" in metrics:
            noisy, total = self.gradients.tolist()
            metrics["noisy_gradient_ratio"] = noisy / total if total > 0 else 0.0
        self._reset()
        return metrics

    def _reset(self) -> None:
        for sums in (self.selected, self.pull, self.gradients):
            sums.zero_()

    def _move_to(self, device: torch.device) -> None:
        self.true_image = self.true_image.to(device)
        self.selected, self.pull, self.gradients = (t.to(device) for t in (self.selected, self.pull, self.gradients))

    def state(self) -> dict[str, float]:
        """For a checkpoint within an epoch."""
        state = dict(zip(("selected_wrong", "selected"), self.selected.tolist(), strict=True))
        state |= zip(("noisy_pull", "pull"), self.pull.tolist(), strict=True)
        if self.reports_gradients:
            state |= zip(("noisy_gradient", "all_gradient"), self.gradients.tolist(), strict=True)
        return state

    def load_state(self, state: dict[str, float]) -> None:
        self._reset()
        self.selected.copy_(torch.tensor([state["selected_wrong"], state["selected"]]))
        self.pull.copy_(torch.tensor([state["noisy_pull"], state["pull"]], dtype=torch.float64))
        self.reports_gradients = "all_gradient" in state
        if self.reports_gradients:
            gradients = [state["noisy_gradient"], state["all_gradient"]]
            self.gradients.copy_(torch.tensor(gradients, dtype=torch.float64))


class DivisionObserver(NoiseObserver):
    """A `NoiseObserver` that also evaluates the division of each epoch: right pairs from wrong ones, re-matched texts.

    Wrong pairs are the positive class, as in `detection.py`. A pair is predicted to be wrong if the method does not
    select it in both directions, or re-matches its text. Pairs are ranked by the selection first and by the weight
    among equals. For runs that are not resumed.

    Args:
        true_image: (num_pairs,) the image that each training text belongs to.
        given_image: (num_pairs,) the image that it was given with.
    """

    def __init__(self, true_image: np.ndarray, given_image: np.ndarray) -> None:
        self.is_noisy = true_image != given_image
        super().__init__(true_image)
        self.clean = torch.zeros(len(self.is_noisy), dtype=torch.bool)
        self.score = torch.full((len(self.is_noisy),), float("nan"))  # NaN before a report on the pair
        self.rematched = torch.zeros(2)  # texts with their own image, all

    def _reset(self) -> None:
        super()._reset()
        self.clean.zero_()
        self.score.fill_(float("nan"))
        self.rematched.zero_()

    def _move_to(self, device: torch.device) -> None:
        super()._move_to(device)
        self.clean, self.score, self.rematched = (t.to(device) for t in (self.clean, self.score, self.rematched))

    def step(self, batch: Batch, loss: Loss, pull: Tensor | None = None) -> None:
        super().step(batch, loss, pull)
        report = loss.report
        if report is None:
            return
        pair_id = batch.pair_id
        if report.rematched is not None:
            image = report.rematched
            right = (image == self.true_image[pair_id]) & (image >= 0)
            self.rematched += torch.stack([right.sum(), (image >= 0).sum()])
        if report.clean is not None:
            self.clean[pair_id], self.score[pair_id] = _verdicts(report)

    def finish_epoch(self) -> dict[str, float]:
        """The ratios of the epoch, and "division_precision", "division_recall", "division_auroc", "rematched_right"."""
        division = {}
        score, clean = self.score.cpu().numpy(), self.clean.cpu().numpy()
        known = ~np.isnan(score)
        if known.any():
            found = detection_metrics(self.is_noisy[known], score[known], verdict=~clean[known])
            division = {f"division_{name}": found[name] for name in ("precision", "recall", "auroc")}
        right, total = self.rematched.tolist()
        if total > 0:
            division["rematched_right"] = right / total
        return {**super().finish_epoch(), **division}


def _verdicts(report: PairReport) -> tuple[Tensor, Tensor]:
    """Whether each pair is taken as right as given, (b,) bool, and the score that ranks pairs, (b,)."""
    assert report.clean is not None
    clean = torch.stack(both_directions(report.clean)).all(dim=0)
    weight = clean.float() if report.weight is None else torch.stack(both_directions(report.weight)).mean(dim=0).float()
    if report.rematched is not None:
        kept = report.rematched < 0
        clean, weight = clean & kept, weight * kept
    return clean, (clean.float() + weight) / 2


def _directions(values: Tensor | tuple[Tensor, Tensor] | None) -> tuple[Tensor, ...]:
    """The values of both directions, or the one value of a pair."""
    if values is None:
        return ()
    return values if isinstance(values, tuple) else (values,)
