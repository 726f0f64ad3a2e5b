"""Scores of a whole split, and of every pair among random batches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from sremkit.data import Batches, Vocabulary, make_noise
from sremkit.data.batch import Batch
from sremkit.data.generated.scenes import make_scenes
from sremkit.data.pairs import Pairs
from sremkit.evaluation import detection_metrics
from sremkit.evaluation.scoring import (
    InBatchScores,
    chance_rsum,
    encode_pairs,
    in_batch_scores,
    score_matrix,
    validation_metrics,
)
from sremkit.models import build_matcher
from sremkit.models.matcher import encode_everything
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
    scores = score_matrix(matcher, pairs, vocabulary)
    assert scores.shape == (9, 45)
    batches = Batches(pairs, batch_size=4, vocabulary=vocabulary)
    rows = np.array([0, 13, 44])
    with torch.no_grad():
        block = matcher(batches.take(rows))
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            assert scores[pairs.image_of_text[one], other].item() == pytest.approx(block[i, j].item(), rel=1e-4)


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

    scores = score_matrix(matcher, replace(pairs, image_features=Counted()), vocabulary)
    assert read == list(range(9))
    torch.testing.assert_close(scores, score_matrix(matcher, pairs, vocabulary))


def test_a_subset_of_texts_is_encoded_as_among_all(scenes) -> None:
    pairs, vocabulary, matcher = scenes
    matcher.float().eval()
    batches = Batches(pairs, batch_size=4, vocabulary=vocabulary)
    rows = np.array([40, 3, 17])
    some = encode_everything(matcher, batches, text_rows=rows)
    everything = encode_everything(matcher, batches)
    assert len(some.images) == 9
    expected = everything.texts[torch.from_numpy(rows)].trimmed()
    torch.testing.assert_close(some.texts.trimmed().local, expected.local)


def test_chance_rsum_is_that_of_a_random_order() -> None:
    """Checked against the mean over many random score matrices."""
    from sremkit.evaluation import retrieval_recall

    image_of_text = np.repeat(np.arange(40), [1, 5] * 20)
    rng = np.random.default_rng(0)
    sums = [retrieval_recall(rng.normal(size=(40, 120)), image_of_text)["rsum"] for _ in range(300)]
    assert chance_rsum(image_of_text) == pytest.approx(np.mean(sums), rel=0.02)


def test_validation_metrics_reveal_a_collapse() -> None:
    trainer = tiny.tiny_trainer()
    pairs = tiny.tiny_pairs()
    metrics = validation_metrics(trainer.matcher, pairs)
    assert metrics["score_spread"] > 0.1
    for parameter in trainer.matcher.text_tower.parameters():
        torch.nn.init.zeros_(parameter)
    collapsed = validation_metrics(trainer.matcher, pairs)
    assert collapsed["score_spread"] < 1e-4
    assert collapsed["rsum"] == 0.0  # all tied, and ties count against the model


def test_a_trained_model_scores_wrong_pairs_lower() -> None:
    clean = tiny.tiny_pairs(num_images=200)
    noise = make_noise(clean.image_of_text, rate=0.3, seed=1)
    trainer = tiny.tiny_trainer(pairs=clean, epochs=20, decay_after=20, learning_rate=1e-2)
    trainer.run()
    given = clean.paired_as(noise.image_of_text)
    scores = in_batch_scores(trainer.matcher, given, batch_size=32)
    assert scores.match.shape == (400,)
    assert (scores.match >= 0).all()
    assert (scores.match <= 1).all()
    assert detection_metrics(noise.is_noisy, scores.match)["auroc"] > 0.8
    again = in_batch_scores(trainer.matcher, given, batch_size=32)
    np.testing.assert_array_equal(scores.match, again.match)


class KnownLogits(torch.nn.Module):
    """A matcher whose logits (n, n) of all pairs are known."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits.double())

    def forward(self, batch: Batch) -> Tensor:
        return self.logits[batch.pair_id][:, batch.pair_id]


def pairs_of(images: list[int]) -> Pairs:
    return tiny.tiny_pairs(num_images=len(images), captions=1).paired_as(np.array(images))


def random_logits(n: int) -> Tensor:
    return 2 * torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def match_by_loops(
    logits: Tensor, pairs: Pairs, *, batch_size: int, rounds: int
) -> tuple[list[list[float]], list[int]]:
    """The match of each pair in each batch that it shared with others, and how often it was alone in its batch."""
    table, n = logits.tolist(), len(logits)
    found: list[list[float]] = [[] for _ in range(n)]
    alone = [0] * n
    batches = Batches(pairs, batch_size=batch_size, unique_images=True)
    for round_ in range(rounds):
        for members in batches.order(round_):
            for i in members:
                if len(members) == 1:
                    alone[i] += 1
                    continue
                own = math.exp(table[i][i])
                row = sum(math.exp(table[i][j]) for j in members)
                column = sum(math.exp(table[j][i]) for j in members)
                found[i].append((own / row + own / column) / 2)
    return found, alone


def test_in_batch_scores_by_hand() -> None:
    # Image 0 with texts 0 and 1: 1 / (1 + 3) = 1/4; text 0 with images 0 and 1: 1 / (1 + 7) = 1/8. Mean 3/16, and the
    # same two numbers for pair 1. Energies are minus ln of those sums.
    scores = in_batch_scores(KnownLogits(torch.tensor([[0.0, math.log(3)], [math.log(7), 0.0]])), pairs_of([0, 1]))
    assert scores.match.tolist() == pytest.approx([3 / 16, 3 / 16])
    assert scores.energy_i2t.tolist() == pytest.approx([-math.log(4), -math.log(8)])
    assert scores.energy_t2i.tolist() == pytest.approx([-math.log(8), -math.log(4)])


def test_in_batch_scores_are_the_mean_over_the_rounds() -> None:
    logits, pairs = random_logits(12), pairs_of(list(range(12)))
    found, alone = match_by_loops(logits, pairs, batch_size=4, rounds=3)
    assert alone == [0] * 12
    scores = in_batch_scores(KnownLogits(logits), pairs, batch_size=4)
    assert scores.match.tolist() == pytest.approx([sum(values) / 3 for values in found], rel=1e-12)


def test_a_batch_of_a_single_pair_does_not_count() -> None:
    """Ten texts share image 0: in each round most of them are alone in their batch, with probability 1."""
    logits, pairs = random_logits(14), pairs_of([0] * 10 + [1, 2, 3, 4])
    found, alone = match_by_loops(logits, pairs, batch_size=3, rounds=6)
    sometimes = [i for i in range(14) if found[i] and alone[i]]
    never = [i for i in range(14) if not found[i]]
    assert sometimes
    assert never
    scores = in_batch_scores(KnownLogits(logits), pairs, batch_size=3, rounds=6)
    means = {i: sum(values) / len(values) for i, values in enumerate(found) if values}
    assert scores.match[list(means)].tolist() == pytest.approx(list(means.values()), rel=1e-12)
    # Pairs without any batch with others get the mean of the others.
    assert scores.match[never].tolist() == pytest.approx([sum(means.values()) / len(means)] * len(never))
    for energies in (scores.energy_i2t, scores.energy_t2i):
        assert energies[never].tolist() == pytest.approx([energies[list(means)].mean()] * len(never))


def test_pairs_that_all_share_an_image_get_neutral_scores() -> None:
    scores: InBatchScores = in_batch_scores(KnownLogits(random_logits(3)), pairs_of([0, 0, 0]))
    assert scores.match.tolist() == [0.5] * 3
    assert scores.energy_i2t.tolist() == scores.energy_t2i.tolist() == [0.0] * 3
