"""The captions of an image are judged together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from oracles.joint_posterior import joint_posterior as oracle
from sremkit.audit.scoring import joint_posterior as module
from sremkit.audit.scoring.cross_fit import CrossFitScorer, joint_rate
from sremkit.audit.scoring.joint_posterior import (
    JointPosterior,
    fit_joint_posterior,
    fit_log_ratio,
    images_of_equal_size,
    logit,
)
from sremkit.audit.scoring.types import NoiseRate, PairVectors, ScoringSettings
from sremkit.evaluation.detection import detection_metrics

WIDTH = 8


def posterior(**changes: float) -> JointPosterior:
    numbers = {"slope": 5.0, "intercept": -1.0, "base_rate": 0.3, "mismatch_rate": 0.25, "whole_image_rate": 0.1}
    return JointPosterior(np.zeros(WIDTH), **(numbers | changes))


def draw(captions: int, images: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """P(match) of single pairs, vectors, images and groups of captions, in random order."""
    rng = np.random.default_rng(seed)
    image = rng.permutation(np.repeat(np.arange(images), captions))
    count = len(image)
    return rng.uniform(0.01, 0.99, count), rng.standard_normal((count, WIDTH)), image, np.arange(count)


@pytest.mark.parametrize("captions", [1, 2, 3, 5])
def test_it_is_the_sum_over_all_states(captions: int) -> None:
    own, texts, image, group = draw(captions)
    given = posterior()
    found = given.match_prob(own, texts, image, group)
    unit = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    for number in range(20):
        rows = np.flatnonzero(image == number)
        s = (5 * unit[rows] @ unit[rows].T - 1).clip(-0.6, 4)
        a = logit(own[rows]) - logit(np.array(0.7))
        if captions == 1:
            expected = [1 / (1 + np.exp(-(a[0] + np.log(3))))]
        else:
            expected, _ = oracle(a.tolist(), s.tolist(), 0.25, 0.1)
        np.testing.assert_allclose(found[rows], expected, rtol=1e-10)


def test_two_captions_by_hand() -> None:
    # a = 0, pi = 1/2, s = log 2 and no exchanged images: states 00, 01, 10, 11 have weights 1, 1, 1, 2.
    found, whole = oracle([0.0, 0.0], [[0.0, np.log(2)], [np.log(2), 0.0]], 0.5, 1e-12)
    assert found == pytest.approx([3 / 5, 3 / 5])
    assert whole == pytest.approx(0, abs=1e-9)


def test_one_caption_keeps_its_order_and_with_the_same_rate_its_probability() -> None:
    own, texts, image, group = draw(1)
    same = posterior(mismatch_rate=0.3).match_prob(own, texts, image, group)
    np.testing.assert_allclose(same, own, rtol=1e-10)


def test_resemblance_raises_and_the_lack_of_it_lowers() -> None:
    texts = np.eye(WIDTH)[[0, 0, 0, 1]] + 1e-3 * np.arange(4)[:, None]
    own = np.full(4, 0.7)
    found = posterior(whole_image_rate=1e-4).match_prob(own, texts, np.zeros(4, dtype=int), np.arange(4))
    assert (found[:3] > 0.7).all()
    assert found[3] < 0.7
    # An equal caption is no evidence.
    copies = posterior(whole_image_rate=1e-4).match_prob(own, texts, np.zeros(4, dtype=int), np.array([0, 0, 0, 3]))
    assert (copies[:3] < found[:3]).all()


def test_captions_of_another_image_do_not_support_each_other() -> None:
    """All five resemble each other, and all fit the image badly."""
    texts, image, group = np.ones((5, WIDTH)), np.zeros(5, dtype=int), np.arange(5)
    found = posterior().match_prob(np.full(5, 0.15), texts, image, group)
    assert (found < 0.15).all()
    wrong_twin = replace(posterior(), whole_image_rate=1e-12).match_prob(np.full(5, 0.15), texts, image, group)
    assert (wrong_twin > 0.5).all()


def test_every_caption_is_in_one_group() -> None:
    counts = np.array([1, 2, 5, 8, 9, 17, 1])
    image = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    blocks = list(images_of_equal_size(image))
    rows = np.concatenate([block.ravel() for block in blocks])
    assert len(np.unique(rows)) == len(rows)
    alone = np.setdiff1d(np.arange(len(image)), rows)
    assert sorted(image[alone].tolist()) == [0, 4, 5, 6]  # one caption, and what is left over of 9 and of 17
    for block in blocks:
        assert 2 <= block.shape[1] <= module.MAX_TOGETHER
        assert (image[block] == image[block][:, :1]).all()


def test_the_log_ratio_is_that_of_two_normal_distributions() -> None:
    rng = np.random.default_rng(0)
    slope, intercept = fit_log_ratio(rng.normal(1, 1, 60_000), np.ones(60_000), rng.normal(0, 1, 60_000))
    assert slope == pytest.approx(1, abs=0.03)
    assert intercept == pytest.approx(-0.5, abs=0.03)


def collection(captions: int, wrong: float, *, whole: bool, images: int = 300) -> tuple[PairVectors, np.ndarray]:
    """Images and captions of one cause each; captions are exchanged singly, or all captions of an image."""
    rng = np.random.default_rng(0)
    cause = rng.standard_normal((images, 6))
    image_map, text_map = rng.standard_normal((2, 6, 20))
    image_of_text = np.repeat(np.arange(images), captions)
    noise = rng.standard_normal((len(image_of_text), 20))
    texts = cause[image_of_text] @ text_map + 2.0 * noise
    given = image_of_text.copy()
    if whole:
        moved = rng.permutation(images)[: round(wrong * images)]
        new = np.arange(images)
        new[moved] = np.roll(moved, 1)
        given = new[image_of_text]
    else:
        moved = rng.permutation(len(given))[: round(wrong * len(given))]
        given[moved] = np.roll(given[moved], 1)
    vectors = PairVectors(
        torch.from_numpy(cause @ image_map + 2.0 * rng.standard_normal((images, 20))).float(),
        torch.from_numpy(texts).float(),
        torch.from_numpy(given),
        np.ones(len(given), dtype=bool),
    )
    return vectors, given != image_of_text


@pytest.mark.parametrize("whole", [False, True])
def test_mismatches_are_found_better_than_one_by_one(whole: bool, monkeypatch) -> None:
    gains = []
    for captions in (4, 5, 6):
        vectors, is_wrong = collection(captions, 0.3, whole=whole)
        settings = ScoringSettings(negatives=10_000)
        together = CrossFitScorer(settings).fit_score(vectors)
        with monkeypatch.context() as one_by_one:
            one_by_one.setattr(module, "MIN_IMAGES", 10**9)
            alone = CrossFitScorer(settings).fit_score(vectors)
        before, after = (detection_metrics(is_wrong, scores.match_prob)["auroc"] for scores in (alone, together))
        gains.append(after - before)
        assert together.noise_rate is not None
        assert alone.noise_rate is not None
        if captions == 4:
            assert together.noise_rate.low <= 0.3 <= together.noise_rate.high
        expected = max(alone.noise_rate.estimate, float(1 - together.match_prob.mean()))
        assert together.noise_rate.estimate == pytest.approx(expected, abs=1e-12)  # the mean is summed in another order
    # Captions of a whole wrong image resemble each other, so there it must cost nothing.
    assert np.mean(gains) > (0.0 if whole else 0.01)


def test_what_was_saved_scores_the_same(tmp_path: Path) -> None:
    vectors, _ = collection(3, 0.3, whole=False)
    scorer = CrossFitScorer(ScoringSettings(negatives=10_000), folder=tmp_path)
    scorer.fit_score(vectors)
    assert scorer.calibration.joint is not None
    scorer.save(tmp_path / "scorer", {}, with_models=False)
    loaded, _ = CrossFitScorer.load(tmp_path / "scorer")
    np.testing.assert_allclose(loaded.score(vectors).match_prob, scorer.score(vectors).match_prob, rtol=1e-6)


def test_few_images_with_several_captions_are_judged_one_by_one() -> None:
    own, texts, image, group = draw(2, images=99)
    assert fit_joint_posterior(own, 0.3, texts, image, group, seed=0) is None
    own, texts, image, group = draw(2, images=100)
    assert fit_joint_posterior(own, 0.3, texts, image, group, seed=0) is not None


def test_a_collection_with_one_caption_an_image_is_judged_one_by_one() -> None:
    """Where most images have one caption, a second one that resembles the first is no evidence for both."""
    own, texts, image, group = draw(2, images=150)  # 300 pairs
    for singles, together in ((290, True), (310, False)):
        with_singles = np.concatenate([image, image.max() + 1 + np.arange(singles)])
        rows = np.concatenate([np.arange(len(own)), np.arange(singles) % len(own)])
        new_group = np.concatenate([group, group.max() + 1 + np.arange(singles)])
        fitted = fit_joint_posterior(own[rows], 0.3, texts[rows], with_singles, new_group, seed=0)
        assert (fitted is not None) == together


def test_the_rate_is_the_higher_one_and_the_interval_keeps_its_upper_width() -> None:
    rate = joint_rate(NoiseRate(0.3, 0.2, 0.35), np.full(10, 0.6))
    assert rate is not None
    assert (rate.estimate, rate.low, rate.high) == pytest.approx((0.4, 0.2, 0.45))
    kept = joint_rate(NoiseRate(0.3, 0.2, 0.35), np.full(10, 0.75))
    assert kept is not None
    assert (kept.estimate, kept.low, kept.high) == pytest.approx((0.3, 0.2, 0.35))
    assert joint_rate(None, np.zeros(1)) is None
