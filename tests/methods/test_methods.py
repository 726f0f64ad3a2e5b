"""The contract of every registered method, and SREM-plus."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from sremkit.data import Batches, make_noise
from sremkit.evaluation import detection_metrics
from sremkit.methods import METHODS, TrainingContext, build_method
from sremkit.training.diagnostics import StoppedError
from sremkit.training.metrics import both_directions
from sremkit.training.run_folder import RunFolder
from training import tiny


@pytest.mark.parametrize("name", list(METHODS))
def test_a_method_gives_a_finite_loss_that_reaches_every_parameter(name: str) -> None:
    trainer = tiny.tiny_trainer(method=name)
    method, matcher = trainer.method, trainer.matcher
    method.start(trainer.context())
    batch = trainer.batches.take(np.arange(0, 96, 6))
    for epoch, warmup in enumerate((True, False)):
        matcher.zero_grad()
        method.begin_epoch(epoch, warmup=warmup)
        loss = method.loss(trainer.step.forward, batch, warmup=warmup)
        (loss.total + sum(trainer.step.forward.pop_extra_losses().values())).backward()
        assert loss.total.ndim == 0
        assert torch.isfinite(loss.total)
        assert all(not part.requires_grad for part in loss.parts.values())
        for parameter_name, parameter in matcher.named_parameters():
            if not parameter.requires_grad:
                continue  # the method froze it, and moves it itself
            assert parameter.grad is not None, parameter_name
            assert torch.isfinite(parameter.grad).all(), parameter_name
    assert METHODS.describe(name)


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_learns_and_resumes_exactly(name: str, tmp_path: Path) -> None:
    from training.test_resume import StopAfter, assert_same

    whole = RunFolder.create(tmp_path / "whole", config="")
    tiny.tiny_trainer(whole, method=name).run()
    stopped = RunFolder.create(tmp_path / "stopped", config="")
    with pytest.raises(StoppedError):
        tiny.tiny_trainer(stopped, method=name, reporter=StopAfter(21)).run()
    tiny.tiny_trainer(stopped, method=name).run()
    assert_same(whole, stopped)


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_beats_guessing_on_a_small_task(name: str) -> None:
    from training.test_trainer import Listener

    listener = Listener()
    pairs = tiny.tiny_pairs(num_images=200)
    options = {"epochs": 12, "decay_after": 12, "learning_rate": 1e-2}
    options["method_options"] = METHODS[name].example_options()
    tiny.tiny_trainer(method=name, pairs=pairs, reporter=listener, **options).run()
    assert listener.rows[-1]["val/rsum"] > 3 * listener.rows[-1]["val/chance_rsum"]


@pytest.mark.parametrize("name", list(METHODS))
def test_a_report_has_one_entry_per_pair_and_no_gradient(name: str) -> None:
    trainer = tiny.tiny_trainer(method=name)
    trainer.method.start(trainer.context())
    trainer.method.begin_epoch(0, warmup=False)
    batch = trainer.batches.take(np.arange(0, 96, 6))
    report = trainer.method.loss(trainer.step.forward, batch, warmup=False).report
    if report is None:
        return
    for field, dtype in (("clean", torch.bool), ("weight", torch.float32), ("energy", torch.float32)):
        value = getattr(report, field)
        for tensor in () if value is None else both_directions(value):
            assert tensor.shape == (16,), field
            assert tensor.dtype == dtype, field
            assert not tensor.requires_grad, field
    if report.weight is not None:
        assert all(((w >= 0) & (w <= 1)).all() for w in both_directions(report.weight))


@pytest.mark.parametrize("name", list(METHODS))
def test_a_method_reports_a_clean_set_if_it_selects_pairs(name: str) -> None:
    trainer = tiny.tiny_trainer(method=name)
    trainer.method.start(trainer.context())
    trainer.method.begin_epoch(0, warmup=False)
    batch = trainer.batches.take(np.arange(0, 96, 6))
    report = trainer.method.loss(trainer.step.forward, batch, warmup=False).report
    assert (report is not None and report.clean is not None) == METHODS[name].selects_pairs


def test_some_methods_select_pairs_and_some_do_not() -> None:
    assert METHODS["srem"].selects_pairs
    assert not METHODS["infonce"].selects_pairs


def started_plus(num_pairs: int = 96, **options: float):
    method = build_method("srem-plus", **options)
    method.start(TrainingContext(num_pairs, torch.device("cpu")))
    return method


class Fixed:
    """A matcher that always gives these logits."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def __call__(self, batch: object) -> torch.Tensor:
        return self.logits


def test_srem_plus_by_hand() -> None:
    # Two pairs, logits [[1, 0], [0, 1]]: every P_ii = e / (e + 1); cross-entropy -ln P_ii = ln(1 + 1/e).
    # Weights 1 and 0 leave half of it. Complementary, two candidates: -(2 - 1) ln(1 - P_ij) with
    # P_ij = 1 / (1 + e), so again ln(1 + 1/e) in each direction, here with weight 0.3.
    method = started_plus(2, complementary_weight=0.3)
    method.clean_prob = torch.tensor([1.0, 0.0])
    batch = Batches(tiny.tiny_pairs(), batch_size=2).take(np.array([0, 2]))
    batch = type(batch)(**{**vars(batch), "pair_id": torch.tensor([0, 1])})
    unit = math.log(1 + math.exp(-1))
    loss = method.loss(Fixed(torch.eye(2)), batch, warmup=False)
    assert loss.total.item() == pytest.approx(unit / 2 + 0.3 * 2 * unit, rel=1e-5)
    assert method.loss(Fixed(torch.eye(2)), batch, warmup=True).total.item() == pytest.approx(2 * unit, rel=1e-5)


def test_srem_plus_may_warm_up_by_generalised_cross_entropy() -> None:
    # The same two pairs: P_ii = e / (e + 1) in both directions, (1 - sqrt P) / 0.5 each; after the warm-up as ever.
    batch = Batches(tiny.tiny_pairs(), batch_size=2).take(np.array([0, 2]))
    batch = type(batch)(**{**vars(batch), "pair_id": torch.tensor([0, 1])})
    method, plain = started_plus(2, warmup_power=0.5), started_plus(2)
    half = (1 - math.sqrt(math.e / (math.e + 1))) / 0.5
    warm = method.loss(Fixed(torch.eye(2)), batch, warmup=True)
    assert warm.total.item() == pytest.approx(2 * half, rel=1e-5)
    later, plain_later = (m.loss(Fixed(torch.eye(2)), batch, warmup=False) for m in (method, plain))
    assert later.total.item() == plain_later.total.item()
    with pytest.raises(ValueError, match="between 0 and 1, got 3"):
        build_method("srem-plus", warmup_power=3.0)


def test_srem_plus_remembers_with_decay() -> None:
    method = started_plus(2, decay=0.7)
    batch = Batches(tiny.tiny_pairs(), batch_size=2).take(np.array([0, 2]))
    batch = type(batch)(**{**vars(batch), "pair_id": torch.tensor([0, 1])})
    method.loss(Fixed(torch.eye(2)), batch, warmup=True)
    assert method.memory.tolist() == pytest.approx([1.0, 1.0], rel=1e-5)  # logit(e / (e + 1)) = 1
    method.loss(Fixed(3 * torch.eye(2)), batch, warmup=True)
    assert method.memory.tolist() == pytest.approx([0.7 * 1 + 0.3 * 3] * 2, rel=1e-5)


def test_srem_plus_weights_the_upper_component_and_all_pairs_of_a_single_one() -> None:
    generator = torch.Generator().manual_seed(0)
    method = started_plus(400)
    method.memory = torch.cat([torch.randn(200, generator=generator) - 4, torch.randn(200, generator=generator) + 4])
    method.finish_epoch()
    assert method.clean_prob[:200].max() < 0.1
    assert method.clean_prob[200:].min() > 0.9
    method.min_separation = 100.0
    method.finish_epoch()
    assert (method.clean_prob == 1).all()


@pytest.mark.parametrize("min_separation", [1.5, 0.0])
def test_srem_plus_takes_equal_pairs_for_clean(min_separation: float) -> None:
    method = started_plus(500, min_separation=min_separation)
    method.memory = torch.full((500,), -4.8)
    method.finish_epoch()
    assert method.clean_prob.min() > 0.999


def test_srem_plus_may_give_doubtful_pairs_less_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    plain, powered = started_plus(400), started_plus(400, clean_prob_power=3.0)
    plain.memory = powered.memory = torch.cat(
        [torch.randn(200, generator=generator) - 2, torch.randn(200, generator=generator) + 2]
    )
    plain.finish_epoch()
    powered.finish_epoch()
    torch.testing.assert_close(powered.clean_prob, plain.clean_prob**3)
    assert ((plain.clean_prob > 0.2) & (plain.clean_prob < 0.8)).any()  # there are doubtful pairs
    powered.min_separation = 100.0
    powered.finish_epoch()
    assert (powered.clean_prob == 1).all()
    with pytest.raises(ValueError, match="clean_prob_power must be above 0"):
        build_method("srem-plus", clean_prob_power=0.0)


def test_srem_plus_finds_planted_noise() -> None:
    clean = tiny.tiny_pairs(num_images=300)
    noise = make_noise(clean.image_of_text, rate=0.3, seed=1)
    trainer = tiny.tiny_trainer(method="srem-plus", pairs=clean, epochs=12, decay_after=12, learning_rate=1e-2)
    trainer.run()
    assert detection_metrics(noise.is_noisy, trainer.method.clean_prob.numpy())["auroc"] > 0.85


def test_an_ablation_may_give_all_rows_the_same_start() -> None:
    logits = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    batch = Batches(tiny.tiny_pairs(captions=1), batch_size=6).take(np.arange(6))
    whole = build_method("srem").loss(Fixed(logits), batch, warmup=True)
    same, own = (
        build_method("srem", complementary=False, complementary_warmup=on).loss(Fixed(logits), batch, warmup=True)
        for on in (True, False)
    )
    assert same.total == whole.total != own.total
    later = build_method("srem", complementary=False, complementary_warmup=True)
    without = build_method("srem", complementary=False)
    assert later.loss(Fixed(logits), batch, warmup=False).total == (
        without.loss(Fixed(logits), batch, warmup=False).total
    )
