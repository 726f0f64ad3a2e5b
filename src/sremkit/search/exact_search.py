"""Exact search by inner product that reads an eighth of the components of a trained model's vectors.

An orthonormal basis of m leading principal components splits every vector into x' (m,) and a rest of length |x''|. By
the inequality of Cauchy and Schwarz

    <q, x>  <=  <q', x'> + |q''| |x''|

The right side is one product of (n, m + 1) with (m + 1,). A vector whose bound is below the k-th best product found so
far is none of the k best, so products are computed for the others alone: about 200 of 100,000 vectors of a dual encoder
trained on photographs. The result is exact whatever the vectors are. Where the bounds exclude too few, as of random
directions, the caller compares with all.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

COLUMNS = 64  # of the matrix of bounds: 63 components and the length of the rest
FIRST = 256  # vectors with the largest bounds, whose products are computed first
MAX_FRACTION = 1 / 16  # of the vectors; if more must be compared, reading all in order is faster
SAMPLE = 10_000  # vectors that the principal components are computed from
CHUNK = 8_192
ROUNDING = 1e-5  # of float32 in bounds and products, relative to the lengths


class BoundedSearch:
    """Finds the largest inner products with vectors (n, d), `d` above `COLUMNS`."""

    def __init__(self, vectors: np.ndarray) -> None:
        self._vectors = torch.from_numpy(vectors)
        self._basis = principal_components(vectors, COLUMNS - 1)  # (d, m)
        parts = [_split(chunk, self._basis) for chunk in self._vectors.split(CHUNK)]
        self._heads = torch.cat(parts)  # (n, m + 1)
        self._max_length = float(torch.cat([part.norm(dim=1) for part in parts]).max())

    def search(self, queries: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray] | None]:
        """For each query (q, d) the numbers of the `k` largest products, and these, in descending order.

        None of a query whose bounds exclude too few.
        """
        given = torch.from_numpy(np.ascontiguousarray(queries, np.float32))
        bounds = (self._heads @ _split(given, self._basis).T).T.contiguous()  # (q, n)
        return [self._search_one(query, row, k) for query, row in zip(given, bounds, strict=True)]

    def _search_one(self, query: Tensor, bounds: Tensor, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        largest = bounds.topk(min(max(FIRST, 4 * k), len(bounds)))
        numbers = largest.indices
        products = self._vectors[numbers] @ query
        limit = float(products.topk(k).values[-1]) - ROUNDING * float(query.norm()) * self._max_length
        if float(largest.values[-1]) >= limit and len(numbers) < len(bounds):
            numbers = (bounds >= limit).nonzero().squeeze(1)
            if len(numbers) > MAX_FRACTION * len(bounds):
                return None
            products = self._vectors[numbers] @ query
        best = products.topk(k)
        return numbers[best.indices].numpy(), best.values.numpy()


def principal_components(vectors: np.ndarray, count: int) -> Tensor:
    """The leading orthonormal directions (d, count) of a sample of the vectors, without centering."""
    rows = np.random.default_rng(0).permutation(len(vectors))[:SAMPLE]
    sample = torch.from_numpy(vectors[np.sort(rows)]).double()
    directions = torch.linalg.eigh(sample.T @ sample).eigenvectors  # of ascending eigenvalues
    return directions[:, -count:].float().contiguous()


def _split(vectors: Tensor, basis: Tensor) -> Tensor:
    """Components (n, m) in the basis, and the length of the rest in a last column."""
    components = vectors @ basis
    rest = (vectors - components @ basis.T).norm(dim=1, keepdim=True)
    return torch.cat([components, rest], dim=1)
