"""A fold's ensemble, and its model: scores among the pool's candidates, never with the pair's own image."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from made_pairs import SMALL, make_pairs
from sremkit.audit.embed import read_vectors
from sremkit.audit.scoring import fold_model
from sremkit.audit.scoring.candidates import EnsembleWeight
from sremkit.audit.scoring.fold_model import FoldModel, number_pool_images, train_scorers
from sremkit.data.pairs import MISSING
from sremkit.errors import DataError


@pytest.fixture(scope="module")
def vectors():
    return read_vectors(make_pairs(num_images=60)[0])


def test_dual_encoders_differ_in_seed_and_the_first_is_that_of_a_single_one(vectors) -> None:
    rows = np.arange(180)
    _, alone = train_scorers(vectors, rows, replace(SMALL, dual_encoders=1), seed=4)
    _, first, second = train_scorers(vectors, rows, replace(SMALL, dual_encoders=2), seed=4)
    same, other = (
        torch.allclose(alone.encode_images(vectors.images), scorer.encode_images(vectors.images))
        for scorer in (first, second)
    )
    assert (same, other) == (True, False)


def test_ridge_cca_is_weighted_by_the_clean_probability(vectors, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    monkeypatch.setattr(fold_model, "estimate_clean_prob", lambda *args, **options: torch.full((180,), 0.25))
    monkeypatch.setattr(fold_model, "fit_root_cca", lambda *args: weights.append(args[-1]))
    train_scorers(vectors, np.arange(180), SMALL, seed=0)
    torch.testing.assert_close(weights[0], torch.full((180,), 0.25))


def test_the_steps_of_all_dual_encoders_are_counted_together(vectors) -> None:
    steps: list[tuple[int, int]] = []
    settings = replace(SMALL, dual_encoders=2)
    train_scorers(vectors, np.arange(180), settings, seed=0, on_step=lambda done, total: steps.append((done, total)))
    assert [done for done, _ in steps] == list(range(1, len(steps) + 1))
    assert {total for _, total in steps} == {len(steps)}


def test_a_number_of_dual_encoders_below_zero_is_an_error() -> None:
    with pytest.raises(DataError, match="dual_encoders must be 0 or more, got -1"):
        replace(SMALL, dual_encoders=-1)


class Identity:
    """A scorer whose inputs are embeddings already."""

    def encode_images(self, images):
        return images

    def encode_texts(self, texts):
        return texts


def scored(
    pool_images: list, pool_texts: list, pool_key: list[int], *, pair: tuple[list, list], image_key: int
) -> dict[str, np.ndarray]:
    """Scores of one pair by a model whose first two pairs of the pool are candidates, and its better fits."""
    tensors = (torch.tensor(rows, dtype=torch.float32) for rows in (pool_images, pool_texts))
    rows, images = np.array([10, 11, 12]), np.array([20, 21, 22])
    model = FoldModel([Identity()], [EnsembleWeight(1.0, 1.0)], 0.0, 1.0, *tensors, np.array(pool_key), rows, images, 2)
    image, text = (torch.tensor([vector], dtype=torch.float32) for vector in pair)
    pairs = model.encode(image, text, torch.tensor([0]), np.array([image_key]))
    better_text, better_image = model.find_better(pairs)
    return {**model.score(pairs)._asdict(), "better_text": better_text, "better_image": better_image}


def test_energies_and_ranks_are_those_among_the_candidates_without_the_own_image() -> None:
    pool = [[1, 0], [0, 1], [0, 9]], [[0, 2], [1, 0], [9, 9]], [50, 51, 52]
    # F of the pair is 2. Texts of the two candidates for its image: 2 and 1; images for its text: 2 and 0.
    # The third of the pool is no candidate.
    found = scored(*pool, pair=([1, 1], [2, 0]), image_key=7)
    assert found["energy_i2t"][0] == pytest.approx(-np.log(np.exp([2, 2, 1]).sum()), rel=1e-6)
    assert found["energy_t2i"][0] == pytest.approx(-np.log(np.exp([2, 2, 0]).sum()), rel=1e-6)
    assert (found["rank_i2t"][0], found["rank_t2i"][0]) == (2, 2)  # a tie counts against it
    # Now the first candidate has the pair's own image: it is left out.
    found = scored(*pool, pair=([1, 1], [2, 0]), image_key=50)
    assert found["energy_i2t"][0] == pytest.approx(-np.log(np.exp([2, 1]).sum()), rel=1e-6)
    assert found["energy_t2i"][0] == pytest.approx(-np.log(np.exp([2, 0]).sum()), rel=1e-6)
    assert (found["rank_i2t"][0], found["rank_t2i"][0]) == (1, 1)


def test_better_fits_are_sought_in_the_pool_and_never_with_the_own_image() -> None:
    pool = [[1, 0], [0, 1], [8, 0]], [[0, 2], [1, 0], [9, 0]], [50, 51, 52]
    # F of the pair is 1. The best text is the third, 9, and the best image the third, 8: both clearly better.
    found = scored(*pool, pair=([1, 0], [1, 0]), image_key=7)
    assert (found["better_text"][0], found["better_image"][0]) == (12, 22)
    found = scored(*pool, pair=([1, 0], [1, 0]), image_key=52)
    assert (found["better_text"][0], found["better_image"][0]) == (MISSING, MISSING)


def test_an_image_with_two_captions_in_the_pool_has_one_number() -> None:
    numbers = number_pool_images(np.array([5, 9, 5, 3]), np.array([3, 8]))
    assert numbers.tolist() == [2, 3, 2, 0]  # 5 is new and first of the pool, 9 second; 3 is known as 0
