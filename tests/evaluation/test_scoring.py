"""Scores of a whole split, and verdicts on every pair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sremkit.data import Batches, Vocabulary, make_noise
from sremkit.data.scenes import make_scenes
from sremkit.evaluation import detection_metrics
from sremkit.evaluation.judging import judge_pairs
from sremkit.evaluation.scoring import chance_rsum, encode_pairs, score_pairs, validation_metrics
from sremkit.models import build_matcher
from sremkit.models.encoding import encode_everything
from training import tiny


@pytest.fixture(scope="module")
def scenes():
    pairs = make_scenes(9)
    vocabulary = Vocabulary.build(pairs.texts, min_count=1)
    torch.manual_seed(0)
    matcher = build_matcher(
        "scan-t2i", vocab_size=len(vocabulary), image_dim=pairs.image_features.dim, embed_size=8, word_dim=8
    )
    return pairs, vocabulary, matcher.double()


def test_scores_of_a_split_are_those_of_single_batches(scenes) -> None:
    pairs, vocabulary, matcher = scenes
    matcher.float().eval()
    scores = score_pairs(matcher, pairs, vocabulary)
    assert scores.shape == (9, 45)
    batches = Batches(pairs, batch_size=4, vocabulary=vocabulary)
    rows = np.array([0, 13, 44])
    with torch.no_grad():
        block = matcher(batches.take(rows))
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            assert scores[pairs.image_of_text[one], other].item() == pytest.approx(
                block[i, j].item(), rel=1e-4
            )


def test_shards_together_encode_everything_once(scenes) -> None:
    pairs, vocabulary, matcher = scenes
    matcher.float().eval()
    whole = encode_pairs(matcher, pairs, vocabulary)
    parts = [encode_pairs(matcher, pairs, vocabulary, shard=(rank, 4)) for rank in range(4)]
    assert [len(part.images) for part in parts] == [3, 2, 2, 2]
    assert [len(part.texts) for part in parts] == [12, 11, 11, 11]
    images = torch.cat([part.images.local for part in parts])
    torch.testing.assert_close(images, whole.images.local)


def test_each_image_is_read_once(scenes) -> None:
    pairs, vocabulary, matcher = scenes
    matcher.float().eval()
    read: list[int] = []

    class Counted:
        dim = pairs.image_features.dim
        __len__ = pairs.image_features.__len__

        def rows(self, indices: np.ndarray):
            read.extend(indices.tolist())
            return pairs.image_features.rows(indices)

    scores = score_pairs(matcher, replace(pairs, image_features=Counted()), vocabulary)
    assert read == list(range(9))
    torch.testing.assert_close(scores, score_pairs(matcher, pairs, vocabulary))


def test_some_texts_alone_are_encoded_as_among_all(scenes) -> None:
    pairs, vocabulary, matcher = scenes
    matcher.float().eval()
    batches = Batches(pairs, batch_size=4, vocabulary=vocabulary)
    rows = np.array([40, 3, 17])
    some = encode_everything(matcher, batches, text_rows=rows)
    everything = encode_everything(matcher, batches)
    assert len(some.images) == 9
    expected = everything.texts[torch.from_numpy(rows)].trimmed()
    torch.testing.assert_close(some.texts.trimmed().local, expected.local)


def test_guessing_gives_what_a_random_order_gives() -> None:
    """Checked against the mean over many random score matrices."""
    from sremkit.evaluation import retrieval_recall

    image_of_text = np.repeat(np.arange(40), [1, 5] * 20)
    rng = np.random.default_rng(0)
    sums = [retrieval_recall(rng.normal(size=(40, 120)), image_of_text)["rsum"] for _ in range(300)]
    assert chance_rsum(image_of_text) == pytest.approx(np.mean(sums), rel=0.02)


def test_validation_tells_what_a_collapse_looks_like() -> None:
    trainer = tiny.tiny_trainer()
    pairs = tiny.tiny_pairs()
    metrics = validation_metrics(trainer.matcher, pairs)
    assert metrics["score_spread"] > 0.1
    for parameter in trainer.matcher.text_tower.parameters():
        torch.nn.init.zeros_(parameter)
    collapsed = validation_metrics(trainer.matcher, pairs)
    assert collapsed["score_spread"] < 1e-4
    assert collapsed["rsum"] == 0.0  # all tied, and ties count against the model


def test_a_trained_model_judges_wrong_pairs_lower() -> None:
    clean = tiny.tiny_pairs(num_images=200)
    noise = make_noise(clean.image_of_text, rate=0.3, seed=1)
    trainer = tiny.tiny_trainer(pairs=clean, epochs=20, decay_after=20, learning_rate=1e-2)
    trainer.run()
    given = clean.paired_as(noise.image_of_text)
    judged = judge_pairs(trainer.matcher, given, batch_size=32)
    assert judged.match.shape == (400,)
    assert (judged.match >= 0).all()
    assert (judged.match <= 1).all()
    assert detection_metrics(noise.is_noisy, judged.match)["auroc"] > 0.8
    again = judge_pairs(trainer.matcher, given, batch_size=32)
    np.testing.assert_array_equal(judged.match, again.match)
