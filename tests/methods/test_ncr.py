"""NCR's labels and loss against loops, by hand, and against the bugs of its public code."""

from __future__ import annotations

import pytest
import torch

from methods.fixed_networks import Stage
from oracles import ncr as oracle
from sremkit.methods.common.co_teaching import PeerSplit
from sremkit.methods.ncr import predicted_labels
from sremkit.objectives.triplet import soft_margin, triplet


def expected_labels(stage: Stage, network: int) -> list[float]:
    predictions = [f.sigmoid().tolist() for f in stage.seen]
    by = 1 - network
    clean, probability = stage.method.clean[by].tolist(), stage.method.probability[by].tolist()
    return oracle.labels(predictions, network, clean, probability, 0.2)


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


def split_of(stage: Stage, network: int) -> PeerSplit:
    return stage.method._split(stage.batch, stage.method._valid(stage.batch), by=1 - network)


def twin_total(stage: Stage, labels) -> float:
    """The loss with labels made otherwise: `labels(predictions, network, split)` of shape (b,) or (b, b)."""
    total = 0.0
    predictions = stage.method._predict(stage.batch)
    for network in (0, 1):
        split = split_of(stage, network)
        label = labels(predictions, network, split)
        hinges = triplet(
            stage.trained[network].sigmoid(),
            margin=soft_margin(label, margin=0.2),
            reduction="hardest",
            valid=split.valid,
        )
        total += hinges.sum().item()
    return total


def predicted(predictions, network: int, split: PeerSplit) -> torch.Tensor:
    return predicted_labels(predictions[network].scores, split, margin=0.2)


def blend(prediction: torch.Tensor, split: PeerSplit) -> torch.Tensor:
    return split.probability + (1 - split.probability) * prediction


def right(predictions, network: int, split: PeerSplit) -> torch.Tensor:
    noisy = (predicted(predictions, 0, split) + predicted(predictions, 1, split)) / 2
    return torch.where(split.clean, blend(predicted(predictions, network, split), split), noisy)


def first_pairs_prediction(predictions, network: int, split: PeerSplit) -> torch.Tensor:
    """The public code until November 2023: every pair gets the prediction of the first pair of the batch."""
    first = predicted(predictions, network, split)[split.clean][:1]
    return torch.where(split.clean, blend(first, split), right(predictions, network, split))


TWINS = {
    "no soft margin, as first released": lambda v, k, split: torch.ones_like(split.probability),
    "the first pair's prediction for all": first_pairs_prediction,
    "the other network's prediction": lambda v, k, split: right(v, 1 - k, split),
    "prediction alone": lambda v, k, split: torch.where(split.clean, predicted(v, k, split), right(v, k, split)),
    "noisy pairs by one network": lambda v, k, split: torch.where(
        split.clean, right(v, k, split), predicted(v, k, split)
    ),
    "probability of being wrong": lambda v, k, split: torch.where(
        split.clean,
        1 - split.probability + split.probability * predicted(v, k, split),
        right(v, k, split),
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
    split = PeerSplit(
        clean=torch.tensor([True, True]),
        probability=torch.tensor([0.6, 0.6], dtype=torch.float64),
        valid=torch.ones(2, 2, dtype=torch.bool),
    )
    prediction = predicted_labels(scores, split, margin=0.2)
    assert prediction.tolist() == pytest.approx([1.0, 3 / 7], rel=1e-10)
    assert blend(prediction, split)[1].item() == pytest.approx(0.6 + 0.4 * 3 / 7, rel=1e-10)


def test_labels_are_0_where_no_pair_has_strength() -> None:
    scores = torch.full((4, 4), 0.9).fill_diagonal_(0.0)
    split = PeerSplit(torch.ones(4, dtype=torch.bool), torch.zeros(4), torch.ones(4, 4, dtype=torch.bool))
    assert predicted_labels(scores, split, margin=0.2).tolist() == [0.0] * 4


def test_labels_carry_no_gradient() -> None:
    stage = Stage("ncr")
    for network in stage.twins.networks():
        network.logits.requires_grad_()
    assert not any(view.scores.requires_grad for view in stage.method._predict(stage.batch))
    trained = stage.trained.clone().requires_grad_()
    stage.total(trained=trained).backward()
    assert trained.grad is not None
    assert all(network.logits.grad is None for network in stage.twins.networks())
