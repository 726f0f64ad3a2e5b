"""What a step's numbers say of the filter."""

from __future__ import annotations

import pytest
import torch

from sremkit.objectives import SREM, Loss
from sremkit.training.numbers import filter_numbers


def test_weights_are_those_that_pull() -> None:
    torch.manual_seed(0)
    logits = 3 * torch.eye(6) + torch.randn(6, 6)
    terms = SREM()(logits)
    assert not torch.equal(terms.clean_i2t, terms.clean_t2i), "else the swap would not show"
    numbers = filter_numbers(terms)
    assert numbers["selected_i2t"].item() == pytest.approx(terms.clean_i2t.sum().item() / 6)
    # Images give their weights to the ranking of the texts, so to the texts that are clean.
    expected = sum(w for w, clean in zip(terms.weight_i2t, terms.clean_t2i, strict=True) if clean)
    assert numbers["weight_i2t"].item() == pytest.approx(float(expected / terms.clean_t2i.sum()))
    expected = sum(w for w, clean in zip(terms.weight_t2i, terms.clean_i2t, strict=True) if clean)
    assert numbers["weight_t2i"].item() == pytest.approx(float(expected / terms.clean_i2t.sum()))


def test_nobody_selected_and_no_filter() -> None:
    assert filter_numbers(SREM()(torch.zeros(4, 4)))["weight_i2t"].item() == 0.0
    assert filter_numbers(Loss(torch.zeros(()), {})) == {}
