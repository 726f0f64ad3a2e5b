"""Metrics of what a method selected."""

from __future__ import annotations

import pytest
import torch

from sremkit.objectives import SREM, Loss
from sremkit.objectives.terms import PairReport
from sremkit.training.metrics import selection_metrics


def test_weights_are_those_that_the_ranking_loss_applies() -> None:
    torch.manual_seed(0)
    logits = 3 * torch.eye(6) + torch.randn(6, 6)
    terms = SREM()(logits)
    assert not torch.equal(terms.clean_i2t, terms.clean_t2i), "else the swap would not show"
    numbers = selection_metrics(terms.report)
    assert numbers["selected_i2t"].item() == pytest.approx(terms.clean_i2t.sum().item() / 6)
    # Images give their weights to the ranking of the texts, so to the texts that are clean.
    expected = sum(w for w, clean in zip(terms.weight_i2t, terms.clean_t2i, strict=True) if clean)
    assert numbers["weight_i2t"].item() == pytest.approx(float(expected / terms.clean_t2i.sum()))
    expected = sum(w for w, clean in zip(terms.weight_t2i, terms.clean_i2t, strict=True) if clean)
    assert numbers["weight_t2i"].item() == pytest.approx(float(expected / terms.clean_i2t.sum()))


def test_no_selected_pair_and_no_report() -> None:
    assert selection_metrics(SREM()(torch.zeros(4, 4)).report)["weight_i2t"].item() == 0.0
    assert selection_metrics(Loss(torch.zeros(()), {}).report) == {}


def test_a_decision_per_pair_counts_for_both_directions() -> None:
    clean, weight = torch.tensor([True, True, False, False]), torch.tensor([1.0, 0.5, 0.25, 0.0])
    metrics = selection_metrics(PairReport(clean=clean, weight=weight))
    assert {name: value.item() for name, value in metrics.items()} == {
        "selected_i2t": 0.5, "selected_t2i": 0.5, "weight_i2t": 0.75, "weight_t2i": 0.75,
    }  # fmt: skip
    assert set(selection_metrics(PairReport(clean=clean))) == {"selected_i2t", "selected_t2i"}
