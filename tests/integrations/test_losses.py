"""The loss contracts of other libraries: the same number as SREM, and a warm-up that ends by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from sremkit import SREM
from sremkit.integrations.embedding_loss import EmbeddingLoss
from sremkit.integrations.metric_learning import MetricLearningLoss
from sremkit.integrations.open_clip import OpenCLIPLoss
from sremkit.integrations.sentence_transformers import SentenceTransformersLoss
from sremkit.integrations.warmup import WarmupReport, WarmupSteps

SCALE, BIAS = 20.0, -10.0


def embeddings(b: int = 12, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    texts = torch.randn(b, 6, generator=g)
    return texts + 0.5 * torch.randn(b, 6, generator=g), texts


def srem(images: Tensor, texts: Tensor, scale: float = SCALE, bias: float = BIAS, **options) -> Tensor:
    """SREM of the matrix of logits, written out."""
    return SREM()(scale * normalize(images) @ normalize(texts).T + bias, **options).total


class Lookup(nn.Module):
    """A model of sentence-transformers' kind."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**features, "sentence_embedding": features["values"]}


def call(loss: EmbeddingLoss, images: Tensor, texts: Tensor, ids: Tensor | None = None) -> Tensor:
    """Each loss as its library calls it."""
    if isinstance(loss, OpenCLIPLoss):
        return loss(normalize(images), normalize(texts), torch.tensor(SCALE), torch.tensor(BIAS))
    if isinstance(loss, SentenceTransformersLoss):
        return loss([{"values": images}, {"values": texts}], ids)
    assert isinstance(loss, MetricLearningLoss)
    labels = torch.arange(len(images)) if ids is None else ids
    return loss(images, labels, ref_emb=texts, ref_labels=labels)


LOSSES = {
    "open_clip": lambda **options: OpenCLIPLoss(**options),
    "sentence-transformers": lambda **options: SentenceTransformersLoss(Lookup(), **options),
    "metric-learning": lambda **options: MetricLearningLoss(**options),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_srem_of_the_scaled_cosines_and_the_warm_up_ends_after_its_batches(name: str) -> None:
    loss = LOSSES[name](warmup=2)
    images, texts = embeddings()
    images.requires_grad_()
    for number, warmup in enumerate((True, True, False, False)):
        expected = srem(images, texts, warmup=warmup)
        total = call(loss, images, texts)
        torch.testing.assert_close(total, expected, msg=f"batch {number}")
        (got,), (wanted,) = (torch.autograd.grad(value, images) for value in (total, expected))
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    assert loss.terms is not None
    assert loss.terms.clean_i2t.shape == (12,)


@pytest.mark.parametrize("name", LOSSES)
def test_the_warm_up_goes_on_in_training_alone_and_is_part_of_the_state(name: str) -> None:
    loss = LOSSES[name](warmup=2)
    images, texts = embeddings()
    call(loss, images, texts)
    with torch.no_grad():
        call(loss, images, texts)
    call(loss.eval(), images, texts)
    assert loss.warmup.warmup
    resumed = LOSSES[name](warmup=2)
    resumed.load_state_dict(loss.state_dict())
    call(resumed.train(), images, texts)
    assert not resumed.warmup.warmup


@pytest.mark.parametrize("name", ["sentence-transformers", "metric-learning"])
def test_pairs_of_one_image_are_not_each_others_negatives(name: str) -> None:
    images, texts = embeddings()
    ids = torch.arange(12) // 2
    total = call(LOSSES[name](warmup=0), images, texts, ids)
    torch.testing.assert_close(total, srem(images, texts, image_ids=ids))
    assert not torch.allclose(total, srem(images, texts))


@pytest.mark.parametrize("name", LOSSES)
def test_the_warm_up_ends_by_itself_unless_a_number_is_given(name: str) -> None:
    loss = LOSSES[name]()
    _, texts = embeddings(64)
    for _ in range(50):  # the monitor's interval; the pairs fit, so their weights suffice
        assert loss.warmup.warmup
        call(loss, texts, texts)
    assert not loss.warmup.warmup


def test_open_clips_dictionary_sums_to_the_loss() -> None:
    images, texts = (normalize(x) for x in embeddings())
    scale, bias = torch.tensor([SCALE]), torch.tensor([BIAS])  # open_clip's may have a shape of (1,)
    losses = OpenCLIPLoss(warmup=0)(images, texts, scale, bias, output_dict=True)
    assert all(key.endswith("_loss") for key in losses)
    torch.testing.assert_close(sum(losses.values()), srem(images, texts))
    without = OpenCLIPLoss(warmup=0, logit_bias=-7.0)(images, texts, SCALE)
    torch.testing.assert_close(without, srem(images, texts, bias=-7.0))


def test_sentence_transformers_learn_scale_and_bias() -> None:
    loss = SentenceTransformersLoss(Lookup(), warmup=1)
    call(loss, *embeddings()).backward()
    assert loss.log_scale.grad is not None
    assert loss.bias.grad is not None
    assert loss.get_config_dict()["bias"] == -10.0
    with pytest.raises(ValueError, match="two columns of the dataset; got 3"):
        loss([{"values": x} for x in (*embeddings(), embeddings()[0])])


def test_metric_learnings_other_forms() -> None:
    losses = pytest.importorskip("pytorch_metric_learning.losses", reason="pytorch-metric-learning is optional")
    images, texts = embeddings()
    labels = torch.arange(12)
    expected = srem(images, texts)
    in_halves = torch.cat([images, texts]), labels.repeat(2)
    torch.testing.assert_close(MetricLearningLoss(warmup=0)(*in_halves), expected)
    both = losses.MultipleLosses([MetricLearningLoss(warmup=0), losses.NTXentLoss()], weights=[0.5, 0.0])
    torch.testing.assert_close(both(*in_halves), 0.5 * expected)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (dict(indices_tuple=(0, 1, 2)), "without a miner"),
        (dict(ref_emb=embeddings()[1], ref_labels=torch.arange(12) + 1), "the same labels"),
    ],
)
def test_metric_learning_refuses_what_it_would_compute_wrongly(arguments: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        MetricLearningLoss(warmup=0)(embeddings()[0], torch.arange(12), **arguments)
    with pytest.raises(ValueError, match="got 11 rows"):
        MetricLearningLoss(warmup=0)(embeddings()[0][:11], torch.arange(11))


def test_the_report_states_each_change_once() -> None:
    steps = WarmupSteps(2)
    report, said = WarmupReport(steps), []
    for _ in range(4):
        steps.update(None)  # type: ignore[arg-type]
        said.append(report.changed())
    assert said == [None, "the warm-up is over: 2 batches", None, None]
    steps.load_state_dict({"done_steps": torch.tensor([1])})
    assert report.changed() == "training returns to the warm-up: 1 batches"
    with pytest.raises(ValueError, match="got -1"):
        WarmupSteps(-1)
