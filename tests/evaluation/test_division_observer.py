"""The division of an epoch against the ground truth, and the share of re-matched texts that are right."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sremkit.data.batch import Batch
from sremkit.evaluation.noise_observer import DivisionObserver
from sremkit.objectives import Loss, PairReport

TRUE, GIVEN = np.array([0, 1, 2, 3, 4]), np.array([0, 1, 3, 4, 2])  # the last three are wrong


def epoch_of(*reports: PairReport | None, image_id: list[int] | None = None) -> dict[str, float]:
    """The metrics after these reports on all five pairs."""
    observer = DivisionObserver(TRUE, GIVEN)
    batch = Batch(pair_id=torch.arange(5), image_id=torch.tensor(image_id or GIVEN.tolist()))
    for report in reports:
        observer.step(batch, Loss(torch.tensor(0.0), {}, report=report))
    found = observer.finish_epoch()
    assert observer.finish_epoch() == {}
    return {name: value for name, value in found.items() if name.startswith(("division", "rematched"))}


def test_by_hand() -> None:
    # Predicted wrong: 1, 2, 3. Of these 2 and 3 are: precision 2/3; 4 is missed: recall 2/3.
    # Scores (clean + weight) / 2: 1, 0.2, 0.1, 0.05, 0.8. Of the six pairs of a right one (1, 0.2) and a wrong one
    # (0.1, 0.05, 0.8), five are in order.
    clean = torch.tensor([True, False, False, False, True])
    weight = torch.tensor([1.0, 0.4, 0.2, 0.1, 0.6])
    assert epoch_of(PairReport(clean=clean, weight=weight)) == pytest.approx(
        {"division_precision": 2 / 3, "division_recall": 2 / 3, "division_auroc": 5 / 6}
    )


def test_without_weights_the_selection_ranks_and_both_directions_must_agree() -> None:
    first, second = torch.tensor([True, True, True, False, False]), torch.tensor([True, True, False, False, False])
    found = epoch_of(PairReport(clean=(first, second)))
    assert found == {"division_precision": 1.0, "division_recall": 1.0, "division_auroc": 1.0}


def test_a_re_matched_text_was_taken_for_wrong_and_is_right_if_it_got_its_own_image() -> None:
    # Texts 2 and 3 are re-matched, with images 2 (right) and 0 (wrong); both count as selected in their new pairs.
    clean = torch.tensor([True, True, True, True, False])
    report = PairReport(clean=clean, weight=torch.ones(5), rematched=torch.tensor([-1, -1, 2, 0, -1]))
    found = epoch_of(report, image_id=[0, 1, 2, 0, 2])
    assert found["rematched_right"] == 0.5
    assert found["division_precision"] == found["division_recall"] == 1.0


def test_the_last_report_on_a_pair_counts() -> None:
    clean = torch.tensor([True, True, False, False, False])
    assert epoch_of(PairReport(clean=~clean), PairReport(clean=clean))["division_recall"] == 1.0


def test_without_a_report_there_is_no_division() -> None:
    assert epoch_of(None) == {}
    assert epoch_of(PairReport(weight=torch.ones(5))) == {}
