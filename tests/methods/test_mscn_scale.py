"""MSCN divides by sigmoids, so the size of the logits matters to it; and which form of it the recipes train."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sremkit.config.recipes import load_recipe
from sremkit.methods import build_method
from sremkit.methods.common.mixtures import seeded_match_probability


def kept_of_wrong_and_right(scale: float) -> tuple[float, float]:
    """Shares that the division keeps, of logits like those after a warm-up at 60 % noise, times the scale."""
    rng = np.random.default_rng(0)
    wrong, right = rng.normal(0.1, 0.9, 600), rng.normal(2.2, 0.5, 400)
    known_right, known_wrong = rng.normal(1.8, 0.8, 200), rng.normal(-0.5, 0.9, 200)
    given, known_right, known_wrong = (
        torch.from_numpy(scale * logits).sigmoid()
        for logits in (np.concatenate([wrong, right]), known_right, known_wrong)
    )
    kept = seeded_match_probability(given, matched=known_right, mismatched=known_wrong) > 0.5
    return float(kept[:600].double().mean()), float(kept[600:].double().mean())


def test_the_division_keeps_more_wrong_pairs_when_all_logits_are_four_times_as_large() -> None:
    """The order of the pairs is the same, so what is lost is lost by saturation alone."""
    wrong_kept, right_kept = kept_of_wrong_and_right(1.0)
    wrong_kept_saturated, right_kept_saturated = kept_of_wrong_and_right(4.0)
    assert min(right_kept, right_kept_saturated) > 0.9
    assert wrong_kept_saturated > 1.3 * wrong_kept


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("flickr8k-dual-mscn", ("sigmoid", "hardest", 0.2)),  # as published
        (
            "flickr8k-sgr-mscn",
            ("logit", "hardest", 4.0),
        ),  # on sigmoids it got no further than 90 in its warm-up
    ],
)
def test_the_recipes_train_the_form_that_is_documented(name: str, form: tuple) -> None:
    options = {key: value for key, value in load_recipe(name).method.items() if key != "name"}
    method, default = build_method("mscn", **options), build_method("mscn")
    assert (method.similarity, method.negatives, method.margin) == form
    assert (default.similarity, default.negatives, default.margin) == ("sigmoid", "hardest", 0.2)
