"""Rivals of the audit against slow oracles, wrong twins, and on pairs whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from made_pairs import make_pairs
from oracles import rivals as oracle
from sremkit.audit.embed import read_vectors
from sremkit.bench import rivals
from sremkit.bench.rivals import LemonConstants, lemon_distance, lemon_terms
from sremkit.evaluation import detection_metrics

K = 4
CONSTANTS = LemonConstants(beta=1.3, gamma=0.7, tau1=0.4, tau2=2.0, k=K)


def unit_vectors(count: int = 14, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    image_emb, text_emb = torch.randn(2, count, 5, generator=generator, dtype=torch.float64)
    return tuple(x / x.norm(dim=1, keepdim=True) for x in (image_emb, text_emb))  # type: ignore[return-value]


def lemon(image_emb: Tensor, text_emb: Tensor, constants: LemonConstants = CONSTANTS) -> np.ndarray:
    halves = np.array_split(np.arange(len(image_emb)), 2)  # two folds with the same space
    return lemon_distance(lemon_terms([(rows, image_emb, text_emb) for rows in halves], constants.k), constants)


def expected_lemon(image_emb: Tensor, text_emb: Tensor, **changes: float) -> list[float]:
    c = replace(CONSTANTS, **changes)  # type: ignore[arg-type]
    return oracle.lemon(image_emb.tolist(), text_emb.tolist(), c.k, c.beta, c.gamma, c.tau1, c.tau2)


def test_deep_knn_matches_the_oracle() -> None:
    image_emb, text_emb = unit_vectors()
    got = rivals.neighbor_consistency(image_emb, text_emb, K)
    np.testing.assert_allclose(got, oracle.deep_knn(image_emb.tolist(), text_emb.tolist(), K), rtol=1e-10)


def test_discrepancy_matches_the_oracle() -> None:
    image_emb, text_emb = unit_vectors()
    got = rivals.second_neighbor_consistency(text_emb, image_emb, K)
    np.testing.assert_allclose(got, oracle.discrepancy(image_emb.tolist(), text_emb.tolist(), K), rtol=1e-10)


def test_lemon_matches_the_oracle() -> None:
    image_emb, text_emb = unit_vectors()
    np.testing.assert_allclose(lemon(image_emb, text_emb), expected_lemon(image_emb, text_emb), rtol=1e-10)


def test_fewer_neighbors_are_the_first_of_more() -> None:
    """Tuning cuts the neighbours that were found once for the largest k."""
    image_emb, text_emb = unit_vectors()
    terms = lemon_terms([(np.arange(14), image_emb, text_emb)], 9)
    expected = expected_lemon(image_emb, text_emb, k=2)
    np.testing.assert_allclose(lemon_distance(terms, replace(CONSTANTS, k=2)), expected, rtol=1e-10)


WRONG_LEMONS: dict[str, Callable[[Tensor, Tensor], np.ndarray]] = {
    "roles exchanged": lambda x, y: lemon(x, y, replace(CONSTANTS, beta=CONSTANTS.gamma, gamma=CONSTANTS.beta)),
    "1 - cos in the first factor": lambda x, y: lemon(
        x, y, replace(CONSTANTS, beta=1.3 * math.exp(-0.4), gamma=0.7 * math.exp(-0.4))
    ),
    "sum for mean": lambda x, y: lemon(x, y, replace(CONSTANTS, beta=1.3 * K, gamma=0.7 * K)),
    "sign of tau2": lambda x, y: lemon(x, y, replace(CONSTANTS, tau2=-2.0)),
    "without the pair's own distance": lambda x, y: lemon(x, y) - (1 - (x * y).sum(dim=1).numpy()),
    "itself a neighbor": lambda x, y: lemon(torch.cat([x, x]), torch.cat([y, y]))[:14],
}


@pytest.mark.parametrize("name", WRONG_LEMONS)
def test_the_oracle_rejects_a_wrong_lemon(name: str) -> None:
    image_emb, text_emb = unit_vectors()
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(
            WRONG_LEMONS[name](image_emb, text_emb), expected_lemon(image_emb, text_emb), rtol=1e-10
        )


def test_the_oracles_reject_wrong_neighbors() -> None:
    image_emb, text_emb = unit_vectors()
    x, y = image_emb.tolist(), text_emb.tolist()
    for wrong, right in (
        (rivals.neighbor_consistency(text_emb, image_emb, K), oracle.deep_knn(x, y, K)),  # spaces exchanged
        (rivals.neighbor_consistency(image_emb, text_emb, K + 1), oracle.deep_knn(x, y, K)),
        (rivals.neighbor_consistency(text_emb, image_emb, K), oracle.discrepancy(x, y, K)),  # first neighbours
        (rivals.second_neighbor_consistency(image_emb, text_emb, K), oracle.discrepancy(x, y, K)),
    ):
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(wrong, right, rtol=1e-10)


def test_lemon_of_two_pairs_by_hand() -> None:
    # x1 = (1, 0), y1 = (1, 0): d_mm = 0. x2 = (0, 1), y2 = (1, 0): d_mm = 1. Each is the other's only neighbour.
    # Pair 1: d_text = 0, so s_n = 0; d_img = 1, cos of the texts 1: s_m = 1 · exp(0.1 · 1) · exp(-5 · 1).
    # Pair 2: d_text = 0; s_m = 1 · exp(0.1) · exp(0): 1 + 5 exp(0.1).
    image_emb = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    text_emb = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    got = lemon(image_emb, text_emb, LemonConstants(k=1))
    np.testing.assert_allclose(got, [5 * math.exp(0.1 - 5), 1 + 5 * math.exp(0.1)], rtol=1e-10)


def test_f1_and_cutoff_by_hand() -> None:
    # In order of distance: wrong, wrong, right, wrong. F1 of the first 2 is 4/5, of all 4 it is 6/7.
    is_wrong, distance = np.array([True, False, True, True]), np.array([0.9, 0.3, 0.8, 0.1])
    assert rivals.best_f1_over_cutoffs(is_wrong, distance) == pytest.approx(6 / 7)
    assert rivals.precise_cutoff(is_wrong, distance, 1.0) == 0.8
    assert rivals.precise_cutoff(is_wrong, distance, 0.75) == 0.1
    assert rivals.precise_cutoff(~is_wrong, distance, 0.9) == np.inf


@pytest.fixture(scope="module")
def made() -> tuple:
    pairs, is_wrong = make_pairs(num_images=150, captions=2, fuzz=0.3)
    return read_vectors(pairs), is_wrong


@pytest.mark.parametrize("name", rivals.UNSUPERVISED)
def test_every_rival_finds_shuffled_pairs(made: tuple, name: str) -> None:
    vectors, is_wrong = made
    score = rivals.UNSUPERVISED[name](vectors, seed=0)
    assert detection_metrics(is_wrong, score)["auroc"] > 0.75
    np.testing.assert_array_equal(score, rivals.UNSUPERVISED[name](vectors, seed=0))


def test_tuned_lemon_is_measured_on_unlabelled_pairs_and_uses_labels(made: tuple) -> None:
    vectors, is_wrong = made
    found = rivals.lemon_tuned(vectors, seed=0, is_wrong=is_wrong, precision=0.9)
    assert found.measured is not None
    assert found.measured.sum() == 240  # of 300
    fixed = detection_metrics(is_wrong[found.measured], rivals.lemon(vectors, seed=0)[found.measured])["auroc"]
    assert detection_metrics(is_wrong[found.measured], found.score[found.measured])["auroc"] > fixed
    changed = is_wrong.copy()
    changed[found.measured] = ~changed[found.measured]  # labels that it must not see
    np.testing.assert_array_equal(
        found.score, rivals.lemon_tuned(vectors, seed=0, is_wrong=changed, precision=0.9).score
    )
