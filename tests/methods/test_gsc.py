"""GSC as a method: its total, its labels after an epoch, its division."""

from __future__ import annotations

import pytest
import torch

from methods.fixed_networks import FixedNetwork, batch_of
from oracles import crcl, gsc
from sremkit.evaluation import detection_metrics
from sremkit.methods import TrainingContext, build_method
from sremkit.methods.gsc import GSC
from training import tiny

OPTIONS = {"similarity": "logit", "temperature": 0.5, "structure_weight": 0.3, "structure_temperature": 0.8}


def started(n: int = 8, **options: float) -> tuple[GSC, FixedNetwork]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, n, dtype=torch.float64, generator=generator) + torch.eye(n)
    vectors = torch.randn(2, n, 4, dtype=torch.float64, generator=generator)
    network = FixedNetwork(logits, *vectors)
    method = build_method("gsc", **{**OPTIONS, **options})
    method.start(TrainingContext(n, torch.device("cpu"), network, lambda _: iter(())))
    for name in ("probability", "consistency", "probability_mean", "structure_mean"):
        setattr(method, name, getattr(method, name).double())
    method.probability_mean[:] = torch.rand(n, dtype=torch.float64, generator=generator)
    return method, network


@pytest.mark.parametrize("warmup", [False, True])
def test_the_total_matches_the_oracle(warmup: bool) -> None:
    method, network = started()
    labels = [1.0] * 8 if warmup else method.label.tolist()
    loss = method.loss(network, batch_of(8), warmup=warmup)
    expected = gsc.total(
        (network.logits / 0.5).tolist(),
        network.images.tolist(),
        network.texts.tolist(),
        labels,
        0.0 if warmup else 0.3,
        0.8,
    )
    assert loss.total.item() == pytest.approx(expected, rel=1e-10)
    found = gsc.consistency(gsc.cosines(network.images.tolist()), gsc.cosines(network.texts.tolist()), labels)
    assert method.consistency.tolist() == pytest.approx(found, rel=1e-10)
    assert (loss.report is None) == warmup


def test_labels_after_an_epoch_match_the_oracle() -> None:
    method, network = started(16)
    before = method.probability_mean.tolist()
    method.loss(network, batch_of(16), warmup=False)
    consistency = method.consistency.tolist()
    method.finish_epoch()
    scores = (network.logits / 0.5).tolist()
    expected = []
    for i, structure in enumerate(gsc.posterior(consistency)):
        probability = 0.7 * crcl.probability(scores, i) + 0.3 * before[i]
        expected.append(min(probability, 0.7 * structure + 0.3))
    assert method.label.tolist() == pytest.approx(expected, rel=1e-8)  # two orders of summation in ten steps of EM
    by_structure = [0.7 * structure + 0.3 for structure in gsc.posterior(consistency)]
    assert any(y == pytest.approx(s) for y, s in zip(expected, by_structure, strict=True))


def test_the_label_is_the_smaller_one_by_hand() -> None:
    method, _ = started(2)
    method.probability_mean, method.structure_mean = torch.tensor([0.9, 0.2]), torch.tensor([0.4, 0.8])
    assert method.label.tolist() == pytest.approx([0.4, 0.2])


def test_labels_carry_no_gradient_and_structure_has_one() -> None:
    method, network = started(structure_weight=1.0)
    network.images.requires_grad_()
    method.loss(lambda _: network.logits, batch_of(8), warmup=False).total.backward()
    assert network.images.grad.abs().sum() > 0
    assert not method.label.requires_grad
    assert not method.consistency.requires_grad


def test_labels_find_planted_noise() -> None:
    clean = tiny.tiny_pairs(num_images=150)
    trainer = tiny.tiny_trainer(
        method="gsc", pairs=clean, epochs=8, decay_after=8, learning_rate=1e-2, method_options=GSC.example_options()
    )
    trainer.run()
    is_noisy = trainer.batches.pairs.image_of_text != clean.image_of_text
    assert detection_metrics(is_noisy, trainer.method.label.numpy())["auroc"] > 0.8


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="momentum must lie between 0 and 1"):
        build_method("gsc", momentum=2.0)
    with pytest.raises(ValueError, match="temperature must be positive"):
        build_method("gsc", temperature=-1.0)
