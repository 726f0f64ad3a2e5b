"""From a recipe to a trainer: what a method can see of the truth, what an ensemble is, and what memory was used."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sremkit.config.recipes import load_recipe
from sremkit.experiment import make_batches, make_trainer, memory, peak_memory_mb, prepare
from sremkit.models.ensemble import logit_of_mean
from sremkit.training.reporters import Reporter

SMALL = [
    "data.train_options.num_scenes=40", "data.options.num_scenes=10", "noise.rate=0.4", "training.batch_size=20",
    "model.embed_size=8", "model.word_dim=8", "training.device=cpu",
]  # fmt: skip


def test_image_ids_do_not_reveal_which_pairs_are_wrong() -> None:
    """Scenes have five captions each: in the order of the data, pair k belongs to image k // 5."""
    prepared = prepare(load_recipe("scenes-srem", SMALL))
    trainer = make_trainer(prepared, Reporter())
    pairs = np.arange(len(prepared.train))
    batch = make_batches(prepared).take(pairs)
    assert np.array_equal(prepared.true_image, pairs // 5)
    assert 0.3 < prepared.is_noisy.mean() < 0.5
    guessed = batch.image_id.numpy() != pairs // 5
    assert np.mean(guessed) > 0.9  # nearly all: ids have nothing to do with the order of the pairs
    given = trainer.context().pairing.image_of_text
    assert torch.equal(given, batch.image_id)
    # Ids still tell which pairs share an image.
    same_image = prepared.train.image_of_text[:, None] == prepared.train.image_of_text
    assert np.array_equal(batch.image_id[:, None].numpy() == batch.image_id.numpy(), same_image)


def test_image_ids_are_a_function_of_the_seed_and_lead_back_to_the_features() -> None:
    prepared = prepare(load_recipe("scenes-srem", SMALL))
    batches, again = make_batches(prepared), make_batches(prepared)
    other = make_batches(prepare(load_recipe("scenes-srem", [*SMALL, "training.seed=1"])))
    rows = np.arange(prepared.train.num_images)
    ids = batches.image_ids(rows)
    assert np.array_equal(ids, again.image_ids(rows))
    assert not np.array_equal(ids, other.image_ids(rows))
    assert np.array_equal(batches.image_rows(ids), rows)
    batch = batches.take(np.array([7, 33]))
    expected = prepared.train.image_features.rows(prepared.train.image_of_text[[7, 33]])
    assert np.array_equal(batch.images.numpy(), expected.values)
    assert np.array_equal(batches.take_images(rows[:3]).image_id.numpy(), ids[:3])


def test_the_observer_counts_wrong_pairs_by_the_shuffled_ids() -> None:
    prepared = prepare(load_recipe("scenes-srem", SMALL))
    trainer = make_trainer(prepared, Reporter())
    batch = trainer.batches.take(np.arange(len(prepared.train)))
    wrong = trainer.observer.true_image[batch.pair_id] != batch.image_id
    assert np.array_equal(wrong.numpy(), prepared.is_noisy)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_ensemble_ranks_by_the_mean_similarity_and_keeps_what_sigmoids_round(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    logits = [3 * torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(count)]
    mean = torch.stack([each.sigmoid() for each in logits]).mean(dim=0)
    torch.testing.assert_close(logit_of_mean(*logits).sigmoid(), mean)
    saturated = [torch.tensor([60.0, 70.0, -200.0, -210.0])] * count  # float32 sigmoids: 1, 1, 0, 0
    assert len(set(logit_of_mean(*saturated).tolist())) == 4


def test_peak_memory_is_in_mib_on_every_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    usage = SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda _: SimpleNamespace(ru_maxrss=3 * 2**20))
    monkeypatch.setitem(sys.modules, "resource", usage)
    for platform, expected in (("linux", 3 * 2**10), ("darwin", 3.0)):
        monkeypatch.setattr(memory.sys, "platform", platform)
        assert peak_memory_mb(cpu) == expected
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert np.isnan(peak_memory_mb(cpu))
