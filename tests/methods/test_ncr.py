"""NCR's labels and loss against loops, by hand, and against the bugs of its public code."""

from __future__ import annotations

import pytest
import torch

from methods.two_views import Stage
from oracles import ncr as oracle
from sremkit.methods.co_teaching import Side
from sremkit.methods.ncr import predicted_labels
from sremkit.objectives.soft_margin import soft_margin
from sremkit.objectives.triplet import triplet


def expected_labels(stage: Stage, network: int) -> list[float]:
    views = [f.sigmoid().tolist() for f in stage.seen]
    told = 1 - network
    clean, probability = stage.method.clean[told].tolist(), stage.method.probability[told].tolist()
    return oracle.labels(views, network, clean, probability, 0.2)


def expected_total(stage: Stage, *, with_noisy: bool, negatives: str = "hardest") -> float:
    return sum(
        oracle.loss(
            stage.trained[network].sigmoid().tolist(),
            expected_labels(stage, network),
            stage.method.clean[1 - network].tolist(),
            0.2,
            10.0,
            with_noisy,
            negatives,
        )
        for network in (0, 1)
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("with_noisy", [False, True])
@pytest.mark.parametrize("negatives", ["hardest", "mean"])
def test_the_loss_is_the_oracles(seed: int, with_noisy: bool, negatives: str) -> None:
    stage = Stage("ncr", seed=seed, noisy_after=0 if with_noisy else 1, negatives=negatives)
    expected = expected_total(stage, with_noisy=with_noisy, negatives=negatives)
    assert stage.total().item() == pytest.approx(expected, rel=1e-10)


def side_of(stage: Stage, network: int) -> Side:
    return stage.method._side(stage.batch, stage.method._distinct(stage.batch), told_by=1 - network)


def twin_total(stage: Stage, labels) -> float:
    """The loss with labels made otherwise: `labels(views, network, side)` of shape (b,) or (b, b)."""
    total = 0.0
    views = stage.method._views(stage.batch)
    for network in (0, 1):
        side = side_of(stage, network)
        label = labels(views, network, side)
        hinges = triplet(
            stage.trained[network].sigmoid(),
            margin=soft_margin(label, margin=0.2),
            reduction="hardest",
            valid=side.valid,
        )
        total += hinges.sum().item()
    return total


def predicted(views, network: int, side: Side) -> torch.Tensor:
    return predicted_labels(views[network].scores, side, margin=0.2)


def blend(prediction: torch.Tensor, side: Side) -> torch.Tensor:
    return side.probability + (1 - side.probability) * prediction


def right(views, network: int, side: Side) -> torch.Tensor:
    noisy = (predicted(views, 0, side) + predicted(views, 1, side)) / 2
    return torch.where(side.clean, blend(predicted(views, network, side), side), noisy)


def first_pairs_prediction(views, network: int, side: Side) -> torch.Tensor:
    """The public code until November 2023: everybody gets the prediction of the batch's first pair."""
    first = predicted(views, network, side)[side.clean][:1]
    return torch.where(side.clean, blend(first, side), right(views, network, side))


TWINS = {
    "no soft margin, as first released": lambda v, k, side: torch.ones_like(side.probability),
    "the first pair's prediction for all": first_pairs_prediction,
    "the other network's prediction": lambda v, k, side: right(v, 1 - k, side),
    "prediction alone": lambda v, k, side: torch.where(side.clean, predicted(v, k, side), right(v, k, side)),
    "noisy pairs by one network": lambda v, k, side: torch.where(
        side.clean, right(v, k, side), predicted(v, k, side)
    ),
    "probability of being wrong": lambda v, k, side: torch.where(
        side.clean,
        1 - side.probability + side.probability * predicted(v, k, side),
        right(v, k, side),
    ),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_wrong_twins(twin) -> None:
    stage = Stage("ncr")
    expected = expected_total(stage, with_noisy=True)
    assert twin_total(stage, right) == pytest.approx(expected, rel=1e-10)
    assert twin_total(stage, twin) != pytest.approx(expected, rel=1e-6)


def test_labels_by_hand() -> None:
    # Two clean pairs. Network 0 sees S = [[0.9, 0.8], [0.5, 0.6]]; margin 0.2, means over two candidates.
    # Pair 0: hinges 0.1 and 0 -> l = 0.05, P = 0.2 - 0.025 = 0.175. Pair 1: 0.1 and 0.4 -> l = 0.25, P = 0.075.
    # 2 // 10 + 1 = 1 strongest: yhat = 1 and 0.075 / 0.175 = 3/7. With p = 0.6: y = 1 and 0.6 + 0.4 * 3/7.
    scores = torch.tensor([[0.9, 0.8], [0.5, 0.6]], dtype=torch.float64)
    side = Side(
        clean=torch.tensor([True, True]),
        probability=torch.tensor([0.6, 0.6], dtype=torch.float64),
        valid=torch.ones(2, 2, dtype=torch.bool),
    )
    prediction = predicted_labels(scores, side, margin=0.2)
    assert prediction.tolist() == pytest.approx([1.0, 3 / 7], rel=1e-10)
    assert blend(prediction, side)[1].item() == pytest.approx(0.6 + 0.4 * 3 / 7, rel=1e-10)


def test_nobody_is_believed_where_all_lose() -> None:
    scores = torch.full((4, 4), 0.9).fill_diagonal_(0.0)
    side = Side(torch.ones(4, dtype=torch.bool), torch.zeros(4), torch.ones(4, 4, dtype=torch.bool))
    assert predicted_labels(scores, side, margin=0.2).tolist() == [0.0] * 4


def test_labels_carry_no_gradient() -> None:
    stage = Stage("ncr")
    for network in stage.twins.networks():
        network.logits.requires_grad_()
    assert not any(view.scores.requires_grad for view in stage.method._views(stage.batch))
    trained = stage.trained.clone().requires_grad_()
    stage.total(trained=trained).backward()
    assert trained.grad is not None
    assert all(network.logits.grad is None for network in stage.twins.networks())
