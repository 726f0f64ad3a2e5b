"""The sample depends on ids and seed, not on the shards; its scorer leaks nothing between folds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from made_pairs import SMALL, from_arrays, make_pairs, vectors_of, with_vectors
from sharded import draw_sample
from sremkit.audit.embed import read_vectors
from sremkit.audit.scoring import cross_fit
from sremkit.audit.scoring.cross_fit import hashed_folds
from sremkit.audit.sharded.sample import SampleModel, hash_texts

pytest.importorskip("pyarrow")


def test_the_sample_depends_on_ids_and_seed_and_not_on_the_shards(tmp_path: Path) -> None:
    pairs, _ = make_pairs(num_images=100)
    samples = [draw_sample(tmp_path, pairs, shards=shards, sample=90) for shards in (1, 3, 7)]
    expected = np.argsort(hash_texts(pairs.pair_ids, seed=0))[:90]
    for sample in samples:
        assert sample.pair_ids == [pairs.pair_ids[k] for k in expected]
        assert torch.equal(sample.vectors.images, samples[0].vectors.images)
        assert torch.equal(sample.vectors.texts, samples[0].vectors.texts)
    other = draw_sample(tmp_path, pairs, shards=3, sample=90, seed=1)
    assert set(other.pair_ids) != set(samples[0].pair_ids)


def test_the_sample_holds_the_pairs_as_they_were_given(tmp_path: Path) -> None:
    pairs, _ = make_pairs(num_images=50)
    images, texts = vectors_of(pairs)
    sample = draw_sample(tmp_path, pairs, shards=4, sample=60)
    for k, pair_id in enumerate(sample.pair_ids):
        row = pairs.pair_ids.index(pair_id)
        image = int(sample.vectors.image_of_text[k])
        np.testing.assert_array_equal(sample.vectors.texts[k], texts[row])
        np.testing.assert_array_equal(sample.vectors.images[image], images[pairs.image_of_text[row]])
        assert sample.image_ids[image] == pairs.image_ids[pairs.image_of_text[row]]
        assert sample.captions[k] == pairs.texts[row]


def test_a_hash_draws_evenly() -> None:
    order = hash_texts([str(k) for k in range(40_000)], seed=0)
    shares = np.histogram(order / 2.0**63, bins=10, range=(0, 1))[0] / 40_000
    assert np.abs(shares - 0.1).max() < 5 * np.sqrt(0.1 * 0.9 / 40_000)  # five standard errors


def test_copies_under_other_names_are_one_image() -> None:
    images = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    images[3] = images[1]
    keys = read_vectors(from_arrays(images, images, np.arange(4))).image_key
    assert keys[3] == keys[1]
    assert len(set(keys.tolist())) == 3


def test_no_model_was_trained_on_an_image_that_it_scores_nor_on_a_near_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs, _ = make_pairs(num_images=200, captions=1)
    images, _ = vectors_of(pairs)
    images[100:] = images[:100] + 1e-4  # every image again, saved a little worse: its hash is another
    pairs = with_vectors(pairs, images=images)
    sample = draw_sample(tmp_path, pairs, shards=2, sample=10**6)
    number_of = {key: k for k, key in enumerate(read_vectors(pairs).image_key)}
    trained: list[set[int]] = []

    def watch(vectors, rows, settings, **options):
        keys = sample.vectors.image_key[vectors.image_of_text.numpy()[rows]]
        trained.append({number_of[key] % 100 for key in keys})
        return real(vectors, rows, settings, **options)

    real = cross_fit.train_scorers
    monkeypatch.setattr(cross_fit, "train_scorers", watch)
    SampleModel.fit(sample, SMALL, num_images=200)
    fold_of_image = hashed_folds(read_vectors(pairs).image_key, SMALL.folds, seed=SMALL.seed)
    assert len(trained) == SMALL.folds
    for fold, seen in enumerate(trained):
        assert seen
        scored = {k % 100 for k in np.flatnonzero(fold_of_image == fold)}
        assert not seen & scored


def test_a_model_on_disk_scores_like_the_one_in_memory(tmp_path: Path) -> None:
    pairs, _ = make_pairs(num_images=150)
    model = SampleModel.fit(draw_sample(tmp_path, pairs, shards=2, sample=400), SMALL, num_images=150)
    model.save(tmp_path / "model", key="a")
    again = SampleModel.load(tmp_path / "model", "a")
    assert again.sampled == 400
    (first, better), (second, better_again) = model.score(pairs), again.score(pairs)
    for name in (
        "match_prob",
        "energy_i2t",
        "energy_t2i",
        "rank_i2t",
        "rank_t2i",
        "better_text",
        "better_image",
        "fold",
    ):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
    assert better == better_again
    assert first.noise_rate is not None
    assert second.noise_rate is not None
    assert vars(first.noise_rate) == vars(second.noise_rate)


def test_better_fits_are_named_by_pairs_and_images_of_the_sample(tmp_path: Path) -> None:
    pairs, is_wrong = make_pairs(num_images=400, fuzz=0.2)
    sample = draw_sample(tmp_path, pairs, shards=2, sample=1000)
    scores, better = SampleModel.fit(sample, SMALL, num_images=400).score(pairs)
    truth = np.repeat(np.arange(400), 3)
    named = np.array([name is not None for name in better["better_image"]])
    assert named[is_wrong].mean() > 0.5
    assert set(better["better_text_id"]) - {None} <= set(sample.pair_ids)
    assert set(better["better_image"]) - {None} <= set(pairs.image_ids)
    assert [text is None for text in better["better_text"]] == [k is None for k in better["better_text_id"]]
    # Where the true image is in the sample and in the pair's fold, it is mostly the one that is named.
    fold_of_image = hashed_folds(read_vectors(pairs).image_key, SMALL.folds, seed=SMALL.seed)
    in_sample = {pairs.image_ids.index(name) for name in sample.image_ids}
    within_reach = named & is_wrong & (fold_of_image[truth] == scores.fold) & np.isin(truth, list(in_sample))
    assert within_reach.sum() > 30
    found = [better["better_image"][k] == pairs.image_ids[truth[k]] for k in np.flatnonzero(within_reach)]
    assert np.mean(found) > 0.5
