"""Whether SREM's warm-up leaves rows sharp enough for its weights, and what is said where it does not."""

from __future__ import annotations

import math

import pytest
import torch

from sremkit.methods import build_method
from sremkit.methods.pulling import Pulling
from sremkit.objectives import SREM
from training import tiny
from training.test_loop import Listener


def test_the_mean_is_over_selected_pairs_with_the_weights_that_pull_them() -> None:
    torch.manual_seed(0)
    pulling, weights = Pulling(), []
    for _ in range(3):
        terms = SREM()(3 * torch.eye(6) + torch.randn(6, 6))
        pulling.see(terms)
        for weight, clean in ((terms.weight_i2t, terms.clean_t2i), (terms.weight_t2i, terms.clean_i2t)):
            weights += [float(w) for w, c in zip(weight, clean, strict=True) if c]
    assert math.isnan(pulling.weight)  # of the last whole epoch, and there is none
    pulling.finish_epoch()
    assert pulling.weight == pytest.approx(sum(weights) / len(weights))
    pulling.see(terms)
    again = Pulling()
    again.load_state_dict(pulling.state_dict())
    assert again.weight == pulling.weight
    again.finish_epoch()
    pulling.finish_epoch()
    assert again.weight == pulling.weight


def test_flat_rows_are_not_enough_and_sharp_ones_are() -> None:
    flat, sharp, nobody = Pulling(), Pulling(), Pulling()
    flat.see(SREM()(0.1 * torch.eye(8)))
    sharp.see(SREM()(20.0 * torch.eye(8) - 10))
    nobody.see(SREM()(torch.zeros(8, 8)))
    for pulling in (flat, sharp, nobody):
        assert not pulling.is_enough()
        pulling.finish_epoch()
    assert not flat.is_enough()
    assert flat.weight < 0.01
    assert sharp.is_enough()
    assert not nobody.is_enough()
    assert nobody.in_words() == "no pair was selected"


def warnings_of(*, enough: bool = False, **options: object) -> list[str]:
    listener = Listener()
    trainer = tiny.tiny_trainer(reporter=listener, epochs=2, warmup_epochs=2, **options)
    if enough:
        trainer.method.pulling.is_enough = lambda: True
    trainer.run()
    return [sentence for sentence in listener.warnings if "warm-up ends" in sentence]


def test_a_warm_up_that_ends_too_early_is_told_once() -> None:
    early = warnings_of()
    assert len(early) == 1
    assert "the warm-up ends early for SREM: selected pairs would be pulled with 0." in early[0]
    assert warnings_of(enough=True) == []
    assert warnings_of(method_options={"weighting": False}) == []  # nothing to wait for
    assert warnings_of(method="infonce") == []


def test_an_adaptive_warm_up_waits_for_the_weights() -> None:
    method = build_method("srem")
    method.warming.is_enough = lambda: True
    method.pulling.weight = 0.6
    assert not method.warmed_up()
    assert "pulled with 0.60" in method.warmth()
    method.pulling.weight = 0.7
    assert method.warmed_up()
    assert method.too_cold() == ""
