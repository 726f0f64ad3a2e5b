"""CRCL as a method: its total, its labels, its restarts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods.fixed_networks import batch_of
from oracles import crcl as oracle
from sremkit.evaluation import detection_metrics
from sremkit.methods import TrainingContext, build_method
from sremkit.methods.crcl import CRCL
from training import tiny

OPTIONS = {"similarity": "logit", "temperature": 0.5, "complementary_weight": 2.0}


def started(n: int = 6, **options: object) -> CRCL:
    method = build_method("crcl", **{**OPTIONS, **options})
    method.start(TrainingContext(n, torch.device("cpu")))
    method.label = method.label.double()
    return method


def logits_of(n: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_the_total_and_the_labels_match_the_oracle_through_warm_up_and_two_epochs() -> None:
    method, batch = started(), batch_of(6)
    warm = logits_of(seed=1)
    loss = method.loss(lambda _: warm, batch, warmup=True)
    assert loss.total.item() == pytest.approx(oracle.total((warm / 0.5).tolist(), [1.0] * 6, 2.0), rel=1e-10)
    assert loss.report is None
    labels = [oracle.probability((warm / 0.5).tolist(), i) for i in range(6)]
    assert method.label.tolist() == pytest.approx(labels, rel=1e-10)
    zeros = 0
    for epoch in (1, 2):
        method.begin_epoch(epoch, warmup=False)
        scores = (logits_of(seed=epoch + 1) / 0.5).tolist()
        labels = oracle.new_labels(scores, labels, 0.8, 0.1)
        loss = method.loss(lambda _, e=epoch: logits_of(seed=e + 1), batch, warmup=False)
        assert loss.total.item() == pytest.approx(oracle.total(scores, labels, 2.0), rel=1e-10)
        assert method.label.tolist() == pytest.approx(labels, rel=1e-10)
        assert loss.report.clean.tolist() == [y > 0 for y in labels]
        zeros += labels.count(0.0)
    assert zeros > 0  # some labels fell below the least one


def test_a_label_by_hand() -> None:
    # Equal scores of four pairs: p = 1/4. From 1: 0.8 + 0.2 / 4 = 0.85. From 0.05: 0.04 + 0.05 = 0.09, which becomes 0.
    method = started(4)
    method.label = torch.tensor([1.0, 0.05, 1.0, 1.0], dtype=torch.float64)
    method.begin_epoch(1, warmup=False)
    method.loss(lambda _: torch.zeros(4, 4, dtype=torch.float64), batch_of(4), warmup=False)
    assert method.label.tolist() == pytest.approx([0.85, 0.0, 0.85, 0.85], rel=1e-12)


def test_no_gradient_goes_through_the_labels() -> None:
    logits = logits_of().requires_grad_()
    method = started(label_decay=0.0)  # the label is this batch's probability
    method.begin_epoch(1, warmup=False)
    method.loss(lambda _: logits, batch_of(6), warmup=False).total.backward()
    labels = torch.tensor(oracle.new_labels((logits / 0.5).tolist(), [1.0] * 6, 0.0, 0.1), dtype=torch.float64)
    again = logits.detach().requires_grad_()
    from sremkit.objectives.rcl import active_complementary as loss

    (
        loss(again / 0.5, labels, complementary_weight=2.0) + loss(again.T / 0.5, labels, complementary_weight=2.0)
    ).mean().backward()
    torch.testing.assert_close(logits.grad, again.grad, rtol=1e-10, atol=1e-12)


def test_the_network_starts_again_with_frozen_labels() -> None:
    restarts = []
    method = build_method("crcl", restarts=2, restart_epochs=3, frozen_epochs=1)
    method.start(TrainingContext(4, torch.device("cpu"), restart=lambda: restarts.append(method.epochs)))
    learns = []
    for epoch in range(12):
        method.begin_epoch(epoch, warmup=epoch < 2)
        if epoch >= 2:
            learns.append(method.learns_labels)
    assert restarts == [3, 6]  # epochs after the warm-up
    assert learns == [True, True, True, False, True, True, False, True, True, True]


def test_a_restart_replaces_the_weights_and_forgets_the_optimizer_and_the_average() -> None:
    options = {"restarts": 1, "restart_epochs": 2, **CRCL.example_options()}
    trainer = tiny.tiny_trainer(method="crcl", method_options=options, ema_decay=0.99)
    trained = {}
    begin = trainer.method.begin_epoch

    def noting(epoch: int, *, warmup: bool) -> None:
        if epoch == 4:
            trained.update({name: p.clone() for name, p in trainer.matcher.state_dict().items()})
        begin(epoch, warmup=warmup)
        if epoch == 4:
            fresh = trainer.matcher.state_dict()
            weights = [name for name in fresh if name.endswith("weight") and fresh[name].ndim > 1]
            assert weights
            assert all(not torch.equal(fresh[name], trained[name]) for name in weights)
            assert all(torch.equal(fresh[name], p) for name, p in trainer.ema.matcher.state_dict().items())
            moments = [moment for state in trainer.optimizer.state.values() for moment in state.values()]
            assert moments
            assert not any(moment.any() for moment in moments)
            assert trainer.position.restarted_at == trainer.position.step > 0

    trainer.method.begin_epoch = noting
    trainer.run()
    assert trained


def test_labels_find_planted_noise() -> None:
    clean = tiny.tiny_pairs(num_images=150)
    trainer = tiny.tiny_trainer(
        method="crcl", pairs=clean, epochs=8, decay_after=8, learning_rate=1e-2, method_options=CRCL.example_options()
    )
    trainer.run()
    is_noisy = trainer.batches.pairs.image_of_text != clean.image_of_text
    assert is_noisy.any()
    assert detection_metrics(is_noisy, trainer.method.label.numpy())["auroc"] > 0.8


def test_options_out_of_range_are_refused() -> None:
    for options, words in (
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"label_decay": 1.5}, "label_decay must lie between 0 and 1"),
        ({"restart_epochs": 0}, "restart_epochs at least 1"),
    ):
        with pytest.raises(ValueError, match=words):
            build_method("crcl", **options)
    method = build_method("crcl", restarts=1, restart_epochs=1)
    method.start(TrainingContext(4, torch.device("cpu")))
    method.begin_epoch(0, warmup=False)
    with pytest.raises(ValueError, match="start it with `restart`"):
        method.begin_epoch(1, warmup=False)
    assert np.isfinite(method.label.numpy()).all()
