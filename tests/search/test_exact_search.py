"""The search by bounds finds what comparing with all vectors finds, and says where it cannot exclude enough."""

from __future__ import annotations

import numpy as np
import pytest

from sremkit.search.exact_search import COLUMNS, FIRST, BoundedSearch, principal_components
from sremkit.search.vector_index import BOUNDS_FROM, VectorIndex

DIM = 160


def decaying(count: int, *, seed: int, unit: bool = True) -> np.ndarray:
    """Vectors with most of their length in few directions, as those of a trained model."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(5).standard_normal((DIM, DIM)))[0]
    vectors = rng.standard_normal((count, DIM)) * np.arange(1, DIM + 1) ** -1.0 @ turn
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True) if unit else 1
    return (vectors / lengths).astype(np.float32)


def isotropic(count: int, *, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)


def nearest(vectors: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-(queries.astype(float) @ vectors.T.astype(float)), axis=1)[:, :k]


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("k", [1, 20, 300])
def test_what_the_bounds_leave_is_exact(unit: bool, k: int) -> None:
    vectors, queries = decaying(12_000, seed=0, unit=unit), decaying(12, seed=1)
    found = BoundedSearch(vectors).search(queries, k)
    answered = [row for row, result in enumerate(found) if result is not None]
    assert len(answered) >= 10  # else nothing was excluded
    for row, expected in zip(answered, nearest(vectors, queries[answered], k), strict=True):
        numbers, products = found[row]
        np.testing.assert_array_equal(numbers, expected)
        np.testing.assert_allclose(products, vectors[expected] @ queries[row], rtol=1e-5, atol=1e-6)


def test_a_best_vector_with_a_small_leading_part_is_found() -> None:
    # It lies in the last direction alone, so its product with the leading components is 0, and its bound is not.
    vectors, rest = decaying(12_000, seed=0), np.linalg.svd(decaying(12_000, seed=0))[2][-1]
    vectors[777] = 3 * rest
    query = rest[None].astype(np.float32)
    assert VectorIndex.build(vectors, query).with_bounds().search(query, 5)[0][0, 0] == 777


def test_random_directions_are_compared_with_all() -> None:
    vectors, queries = isotropic(BOUNDS_FROM, seed=0), isotropic(6, seed=1)
    assert BoundedSearch(vectors).search(queries, 10) == [None] * 6
    index = VectorIndex.build(vectors, queries).with_bounds()
    assert index.bounded is not None
    np.testing.assert_array_equal(index.search(queries, 10)[0], nearest(vectors, queries, 10))


def test_queries_of_both_kinds_in_one_batch_keep_their_rows() -> None:
    vectors = decaying(12_000, seed=0)
    queries = np.concatenate([decaying(2, seed=1), np.zeros((1, DIM), np.float32), decaying(2, seed=2)])
    results = BoundedSearch(vectors).search(queries, 10)
    assert [result is None for result in results] == [False, False, True, False, False]  # all products with 0 are equal
    numbers, products = VectorIndex.build(vectors, queries).with_bounds().search(queries, 10)
    rows = [0, 1, 3, 4]
    np.testing.assert_array_equal(numbers[rows], nearest(vectors, queries[rows], 10))
    np.testing.assert_array_equal(products[2], np.zeros(10))


def test_all_of_the_equal_vectors_can_be_found() -> None:
    vectors = decaying(12_000, seed=0)
    vectors[100 : 100 + FIRST] = vectors[5]  # as many as are compared first
    found = BoundedSearch(vectors).search(vectors[5:6], FIRST + 1)[0]
    assert found is not None
    assert set(found[0].tolist()) == {5, *range(100, 100 + FIRST)}


def test_bounds_are_prepared_where_they_pay() -> None:
    vectors, queries = decaying(BOUNDS_FROM, seed=0), decaying(2, seed=1)
    index = VectorIndex.build(vectors, queries)
    assert index.bounded is None
    assert index.with_bounds().bounded is not None
    assert VectorIndex.build(vectors[1:], queries).with_bounds().bounded is None
    assert VectorIndex.build(vectors[:, :COLUMNS].copy(), queries).with_bounds().bounded is None
    assert VectorIndex.build(vectors, queries, kind="ivf").with_bounds().bounded is None


def test_the_basis_is_orthonormal_and_leading() -> None:
    vectors = decaying(3_000, seed=0)
    basis = principal_components(vectors, 10).numpy()
    np.testing.assert_allclose(basis.T @ basis, np.eye(10), atol=1e-6)
    left, lengths, _ = np.linalg.svd(vectors.T.astype(float) @ vectors)
    np.testing.assert_allclose(np.linalg.norm(left[:, :10].T @ basis, axis=1), 1, atol=1e-3)
    assert lengths[0] > 10 * lengths[9]
