"""The candidate softmax, the ensemble weights, and suggestions of better texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracles import candidate_softmax as oracle
from sremkit.audit.scoring.candidates import (
    CandidateSoftmax,
    concat_weighted,
    ensemble_weights,
    find_better,
)
from sremkit.data.pairs import MISSING


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(3))
def test_the_scores_are_those_of_the_loops(seed: int) -> None:
    images, texts = draw(8, 3, seed=seed).double(), draw(20, 3, seed=seed + 10).double()
    rng = np.random.default_rng(seed)
    image_of_text, candidates = rng.integers(0, 8, 20), np.sort(rng.permutation(20)[:9])
    compare = CandidateSoftmax(images, texts, torch.from_numpy(image_of_text), torch.from_numpy(candidates))
    asked = rng.integers(0, 8, 30), rng.integers(0, 20, 30), rng.integers(-1, 8, 30)
    found = compare.score(*asked)
    for k, (image, text, masked) in enumerate(zip(*asked, strict=True)):
        expected = oracle.score(
            images.tolist(), texts.tolist(), image_of_text.tolist(), candidates.tolist(), image, text, masked
        )
        for name, value in expected.items():
            assert getattr(found, name)[k] == pytest.approx(value, rel=1e-10), name


def test_a_tie_counts_against_the_pair() -> None:
    # Image 0 fits texts 0 and 1 alike; text 1 competes, so the pair comes second.
    images, texts = torch.tensor([[1.0], [0.5]]), torch.tensor([[1.0], [1.0]])
    compare = CandidateSoftmax(images, texts, torch.tensor([0, 1]), torch.tensor([1]))
    assert compare.score(np.array([0]), np.array([0])).rank_i2t.tolist() == [2]


def test_a_scorer_that_does_not_separate_gets_hardly_any_weight() -> None:
    vectors = torch.nn.functional.normalize(draw(2000, 6), dim=1)
    encoded = [(vectors, vectors), (vectors, vectors.roll(7, dims=0))]  # the second has texts of other pairs
    rows = np.arange(2000)
    weights = ensemble_weights(encoded, (rows, rows), (np.roll(rows, 31), rows))
    image_emb, text_emb = concat_weighted(encoded, weights)
    good, useless = (image_emb[:, :6] * text_emb[:, :6]).std(), (image_emb[:, 6:] * text_emb[:, 6:]).std()
    assert useless < 0.05 * good


def test_a_better_text_must_have_odds_of_ten_to_one() -> None:
    # Logits of image 0: its own text 0, text 1 at 3 and text 2 at 1 above it. Ten to one is a distance of 2.3.
    images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    texts = torch.tensor([[0.0, 9.0], [3.0, 9.0], [1.0, 9.0]])
    better_text, _ = find_better(images, texts, torch.arange(3), np.arange(3), np.arange(3), seed=0)
    assert better_text[0] == 1
    texts[1, 0] = 2.0
    better_text, _ = find_better(images, texts, torch.arange(3), np.arange(3), np.arange(3), seed=0)
    assert better_text[0] == MISSING
