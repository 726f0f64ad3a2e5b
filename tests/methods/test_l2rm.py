"""L2RM as a method: its total, its learned cost, its split, what it re-matches."""

from __future__ import annotations

import pytest
import torch

from methods.fixed_networks import batch_of
from oracles import l2rm as oracle
from oracles import triplet
from sremkit.evaluation import detection_metrics
from sremkit.methods import TrainingContext, build_method
from sremkit.methods.l2rm import L2RM
from training import tiny

CLEAN = [True, False, True, False, False, True, False]
OPTIONS = {"similarity": "logit", "temperature": 0.5, "margin": 0.3, "mass": 0.4, "epsilon": 0.3, "rematch_weight": 0.7}


def started(clean: list[bool] = CLEAN, **options: object) -> L2RM:
    method = build_method("l2rm", **{**OPTIONS, **options})
    context = TrainingContext(len(clean), torch.device("cpu"), torch.nn.Identity(), lambda _: iter(()))
    method.start(context)
    method.clean = torch.tensor(clean)
    return method


def logits() -> torch.Tensor:
    return torch.randn(7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def part(matrix: torch.Tensor, rows: list[int]) -> list[list[float]]:
    return matrix[rows][:, rows].tolist()


def expected_total(scores: torch.Tensor, cost: torch.Tensor) -> float:
    clean, noisy = ([i for i, ok in enumerate(CLEAN) if ok is wanted] for wanted in (True, False))
    ranking = sum(triplet.triplet(part(scores, clean), [0.3] * len(clean), "hardest"))
    bias, slope, context = cost.tolist()
    block = part(scores, noisy)
    costs = [[max(0.0, bias - slope * s + context * sum(row) / len(row)) for s in row] for row in block]
    valid = [[i != j for j in range(len(noisy))] for i in range(len(noisy))]
    plan = oracle.partial_transport(costs, 0.4, 0.3, valid, 300)
    return ranking + 0.7 * oracle.rematching([[s / 0.5 for s in row] for row in block], plan, valid)


def test_the_total_matches_the_oracle() -> None:
    method = started(cost_rate=0.0)
    with torch.no_grad():
        method.cost.copy_(torch.tensor([1.2, 0.8, 0.3]))
    loss = method.loss(lambda _: logits(), batch_of(7), warmup=False)
    # float32 parameters of the cost, and a transport that stops at its tolerance
    assert loss.total.item() == pytest.approx(expected_total(logits(), method.cost), rel=1e-4)
    assert loss.report.clean.tolist() == CLEAN


def test_the_warm_up_is_symmetric_cross_entropy_of_both_directions() -> None:
    scores = (logits() / 0.5).tolist()
    expected = (sum(oracle.symmetric(scores)) + sum(oracle.symmetric(oracle.turned(scores)))) / 7
    found = started().loss(lambda _: logits(), batch_of(7), warmup=True)
    assert found.total.item() == pytest.approx(expected, rel=1e-10)


def test_the_cost_learns_that_clean_pairs_are_cheap() -> None:
    method = started(cost_rate=0.01)
    scores = torch.eye(7, dtype=torch.float64) * 0.5
    before = method.costs(scores).diagonal()[0].item()
    assert before == pytest.approx(0.5)  # [1 - 0.5]_+
    for _ in range(5):
        method.loss(lambda _: scores, batch_of(7), warmup=False)
    bias, slope, _ = method.cost.tolist()
    assert bias < 1 < slope
    assert method.costs(scores).diagonal()[0].item() < before
    again = started()
    again.load_state_dict(method.state_dict())
    for each in (method, again):
        each.cost_optimizer.param_groups[0]["lr"] = 0.01
        each.loss(lambda _: scores, batch_of(7), warmup=False)
    assert torch.equal(method.cost, again.cost)  # the moments of Adam are kept


def test_crossed_pairs_are_re_matched_and_reported() -> None:
    # Texts 1 and 3 were exchanged, 4 and 6 fit nothing; the image ids are the pair numbers.
    method = started(mass=0.5, epsilon=0.02)
    scores = torch.zeros(7, 7, dtype=torch.float64)
    scores[1, 3] = scores[3, 1] = 0.9
    report = method.loss(lambda _: scores, batch_of(7), warmup=False).report
    assert report.rematched.tolist() == [-1, 3, -1, 1, -1, -1, -1]


def test_without_noisy_pairs_nothing_is_re_matched() -> None:
    loss = started([True] * 7).loss(lambda _: logits(), batch_of(7), warmup=False)
    assert loss.parts["rematching"] == 0
    assert (loss.report.rematched == -1).all()


def test_the_split_finds_planted_noise() -> None:
    clean = tiny.tiny_pairs(num_images=150)
    options = {"warmup_epochs": 5, "epochs": 2, "decay_after": 2, "learning_rate": 1e-2}
    trainer = tiny.tiny_trainer(method="l2rm", pairs=clean, method_options=L2RM.example_options(), **options)
    trainer.run()
    is_noisy = trainer.batches.pairs.image_of_text != clean.image_of_text
    assert detection_metrics(is_noisy, trainer.method.clean.float().numpy())["auroc"] > 0.75


def test_options_out_of_range_are_refused() -> None:
    for options, words in (({"mass": 0.0}, "mass must lie"), ({"epsilon": 0.0}, "epsilon must be positive")):
        with pytest.raises(ValueError, match=words):
            build_method("l2rm", **options)
