"""The index finds what comparing with all vectors finds, and measures what it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sremkit.errors import DataError
from sremkit.search.vector_index import TARGET_RECALL, VectorIndex, recall_of


def clustered(count: int, *, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(9).standard_normal((20, 8))
    vectors = centers[rng.integers(0, 20, count)] + 0.3 * rng.standard_normal((count, 8))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_a_flat_index_orders_by_inner_product() -> None:
    vectors, queries = clustered(300), clustered(5, seed=1)
    numbers, products = VectorIndex.build(vectors, queries).search(queries, 7)
    expected = np.argsort(-(queries @ vectors.T), axis=1)[:, :7]
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_allclose(products, np.take_along_axis(queries @ vectors.T, expected, 1), rtol=1e-5)


@pytest.mark.parametrize("count", [1, 4, 20])
def test_batches_of_any_size_find_the_same(count: int) -> None:
    vectors, queries = clustered(500), clustered(20, seed=1)
    index = VectorIndex.build(vectors, queries)
    one_by_one = np.concatenate([index.search(query[None], 5)[0] for query in queries[:count]])
    np.testing.assert_array_equal(index.search(queries[:count], 5)[0], one_by_one)


def test_the_kind_follows_from_the_number_of_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, queries = clustered(2000), clustered(20, seed=1)
    monkeypatch.setattr("sremkit.search.vector_index.FLAT_UP_TO", 2000)
    assert VectorIndex.build(vectors, queries).kind == "flat"
    monkeypatch.setattr("sremkit.search.vector_index.FLAT_UP_TO", 1999)
    assert VectorIndex.build(vectors, queries).kind == "ivf"


def test_the_stored_recall_of_an_inverted_file_is_that_of_a_comparison_with_all() -> None:
    vectors, queries = clustered(4000), clustered(50, seed=1)
    index = VectorIndex.build(vectors, queries, kind="ivf")
    exact = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    found = index.search(queries, 10)[0]
    overlap = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(exact.tolist(), found.tolist(), strict=True)])
    assert index.recall == pytest.approx(overlap, abs=1e-9)
    assert index.recall >= TARGET_RECALL
    assert index.faiss_index.nprobe < index.faiss_index.nlist  # else it would compare with all


def test_recall_is_the_fraction_of_the_expected_that_is_found() -> None:
    assert recall_of(np.array([[1, 2, 9], [-1, -1, 5]]), np.array([[2, 3], [5, 6]])) == 0.5


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_an_index_is_the_same_after_loading(tmp_path: Path, kind: str) -> None:
    vectors, queries = clustered(1500), clustered(6, seed=1)
    index = VectorIndex.build(vectors, queries, kind=kind)  # type: ignore[arg-type]
    facts = index.save(tmp_path, "images")
    loaded = VectorIndex.load(tmp_path, "images", facts)
    np.testing.assert_array_equal(loaded.search(queries, 5)[0], index.search(queries, 5)[0])
    assert (loaded.kind, loaded.recall) == (kind, index.recall)


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_a_damaged_index_is_reported_with_the_remedy(tmp_path: Path, kind: str) -> None:
    facts = VectorIndex.build(clustered(200), clustered(2), kind=kind).save(tmp_path, "images")  # type: ignore[arg-type]
    for file in sorted(tmp_path.iterdir()):
        content = file.read_bytes()
        file.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        with pytest.raises(DataError, match="was changed after it was written; build it again with `srem index`"):
            VectorIndex.load(tmp_path, "images", facts)
        file.unlink()
        with pytest.raises(DataError, match=r"cannot be read .*; build it again with `srem index`"):
            VectorIndex.load(tmp_path, "images", facts)
        file.write_bytes(content)
    assert len(VectorIndex.load(tmp_path, "images", facts)) == 200
