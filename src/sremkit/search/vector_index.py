"""Nearest vectors by inner product: exact search up to 100,000 vectors, an inverted file (IVF) of FAISS beyond.

A server excludes most vectors of an exact search by bounds (`exact_search.py`), and compares with all where that is not
possible.

The recall of an inverted file is measured against exact search when it is built: of sample queries, the fraction of
the exact nearest vectors that it finds. It probes as few clusters as reach `TARGET_RECALL`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sremkit.errors import DataError, UserError
from sremkit.extras import require
from sremkit.io import atomic_write, file_checksum
from sremkit.search.exact_search import COLUMNS, BoundedSearch

FLAT_UP_TO = 100_000  # vectors that are searched exactly
BOUNDS_FROM = 10_000  # vectors; of fewer, comparing with all is as fast
TARGET_RECALL = 0.95
RECALL_AT = 10
SAMPLE_QUERIES = 256
PRODUCT_FROM = 4  # queries of a batch; with fewer, a matrix product is slower than reading all vectors for each query
NEVER = 2**30  # queries
CLUSTERS_PER_ROOT = 4  # clusters of n vectors: this times the root of n
TRAIN_PER_CLUSTER = 40  # vectors that k-means is trained on, for each cluster

Kind = Literal["flat", "ivf"]


def faiss_module() -> Any:
    """Import FAISS."""
    return require("faiss", extra="search", purpose="search among vectors")


@dataclass(frozen=True, eq=False)
class VectorIndex:
    """Vectors (n, d) and the FAISS index over them."""

    vectors: np.ndarray  # (n, d) float32
    kind: Kind
    faiss_index: Any
    recall: float | None = None  # at RECALL_AT against exact search; None of an exact index
    bounded: BoundedSearch | None = None  # of `with_bounds`

    @classmethod
    def build(cls, vectors: np.ndarray, sample_queries: np.ndarray, *, kind: Kind | None = None) -> VectorIndex:
        """Index (n, d) vectors.

        Args:
            sample_queries: (q, d) queries to measure the recall of an inverted file with.
            kind: "flat" for exact search, "ivf" for an inverted file; by default what the number of vectors suggests.
        """
        kind = kind or ("flat" if len(vectors) <= FLAT_UP_TO else "ivf")
        if kind == "flat":
            return cls(vectors, kind, _flat(vectors))
        return cls(vectors, kind, *_inverted_file(vectors, sample_queries))

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers (q, k) of the vectors with the largest inner products, and the products, in descending order.

        Where an inverted file finds fewer, numbers are -1.
        """
        queries, k = np.ascontiguousarray(queries, np.float32), min(k, len(self))
        if self.bounded is None:
            return self._compare(queries, k)
        found = self.bounded.search(queries, k)
        open_rows = [row for row, result in enumerate(found) if result is None]
        if open_rows:
            compared = zip(*self._compare(queries[open_rows], k), strict=True)
            for row, result in zip(open_rows, compared, strict=True):
                found[row] = result
        numbers, products = zip(*(result for result in found if result is not None), strict=True)
        return np.stack(numbers), np.stack(products)

    def with_bounds(self) -> VectorIndex:
        """An index that finds the same in a fraction of the time, where that pays; prepared in about a second."""
        pays = self.kind == "flat" and len(self) >= BOUNDS_FROM and self.vectors.shape[1] >= 2 * COLUMNS
        return replace(self, bounded=BoundedSearch(self.vectors)) if pays else self

    def _compare(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `search`, by FAISS."""
        # FAISS would read all vectors again for each query; the results are the same up to rounding.
        by_product = len(queries) >= PRODUCT_FROM
        faiss_module().cvar.distance_compute_blas_threshold = PRODUCT_FROM if by_product else NEVER
        products, numbers = self.faiss_index.search(queries, k)
        return numbers, products

    def __len__(self) -> int:
        return len(self.vectors)

    def save(self, folder: Path, name: str) -> dict[str, Any]:
        """Write NAME.npy, and NAME.faiss of an inverted file; return the facts that `load` needs."""
        atomic_write(folder / f"{name}.npy", lambda path: _save_array(path, self.vectors))
        file = folder / f"{name}.faiss"
        if self.kind == "flat":
            file.unlink(missing_ok=True)
        else:
            faiss = faiss_module()
            atomic_write(file, lambda path: faiss.write_index(self.faiss_index, str(path)))
        return {
            "kind": self.kind,
            "count": len(self),
            "dim": self.vectors.shape[1],
            "recall@10": self.recall,
            "checksums": _checksums(folder, name, self.kind),
        }

    @classmethod
    def load(cls, folder: Path, name: str, facts: dict[str, Any]) -> VectorIndex:
        """Read what `save` wrote; `DataError` if a file is missing or was changed."""
        faiss = faiss_module()
        file = folder / f"{name}.npy"
        try:
            if facts["checksums"] != _checksums(folder, name, facts["kind"]):
                raise DataError(
                    f"{file} or {name}.faiss was changed after it was written; build it again with `srem index`"
                )
            vectors = np.load(file, allow_pickle=False)
            index = _flat(vectors) if facts["kind"] == "flat" else faiss.read_index(str(folder / f"{name}.faiss"))
        except OSError as cause:
            raise DataError(
                f"{cause.filename or file} cannot be read ({cause.strerror}); build it again with `srem index`"
            ) from cause
        return cls(vectors, facts["kind"], index, facts["recall@10"])


def exact_nearest(vectors: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """Numbers (q, k) of the vectors with the largest inner products, by comparing with all."""
    faiss = faiss_module()
    _, numbers = faiss.knn(queries, vectors, min(k, len(vectors)), metric=faiss.METRIC_INNER_PRODUCT)
    return numbers


def recall_of(found: np.ndarray, expected: np.ndarray) -> float:
    """The fraction of the numbers in `expected` (q, k) that are in the same row of `found` (q, c)."""
    hits = (expected[:, :, None] == found[:, None, :]).any(axis=2)
    return float(hits.mean())


def _flat(vectors: np.ndarray) -> Any:
    faiss = faiss_module()
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.ascontiguousarray(vectors, np.float32))
    return index


def _inverted_file(vectors: np.ndarray, sample_queries: np.ndarray) -> tuple[Any, float]:
    """An inverted file that probes as few clusters as reach the target, and its recall."""
    if len(vectors) < TRAIN_PER_CLUSTER:
        raise UserError(f"an inverted file needs {TRAIN_PER_CLUSTER} vectors or more, got {len(vectors)}; use flat")
    faiss = faiss_module()
    clusters = min(round(CLUSTERS_PER_ROOT * math.sqrt(len(vectors))), len(vectors) // TRAIN_PER_CLUSTER)
    index = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(vectors.shape[1]), vectors.shape[1], clusters, faiss.METRIC_INNER_PRODUCT
    )
    sample = np.random.default_rng(0).permutation(len(vectors))[: TRAIN_PER_CLUSTER * clusters]
    index.train(np.ascontiguousarray(vectors[np.sort(sample)]))
    index.add(vectors)
    expected = exact_nearest(vectors, sample_queries, RECALL_AT)
    recall, index.nprobe = 0.0, 1
    while True:
        recall = recall_of(index.search(sample_queries, expected.shape[1])[1], expected)
        if recall >= TARGET_RECALL or index.nprobe >= clusters:
            return index, recall
        index.nprobe = min(2 * index.nprobe, clusters)


def _checksums(folder: Path, name: str, kind: Kind) -> dict[str, str]:
    """Checksums of the files of an index; damage to an index of FAISS could end the process that reads it."""
    suffixes = ("npy",) if kind == "flat" else ("npy", "faiss")
    return {suffix: file_checksum(folder / f"{name}.{suffix}") for suffix in suffixes}


def _save_array(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:  # numpy would append .npy to the temporary name
        np.save(file, array)
