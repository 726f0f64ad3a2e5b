"""Near-duplicate captions and images, as numbered groups; and keys of equal vectors.

Two images are near-duplicates when the cosine of their feature vectors reaches a threshold. Comparing all of them
costs n²d; most of it is saved by a bound. With P an orthonormal projection to a few dimensions, and rest(x)
the norm of what it leaves out,

    x·y  <=  Px·Py + rest(x) rest(y),

so a pair whose right-hand side misses the threshold is skipped. The bound holds for every P: the choice of P, and
rounding in it, change the time and never the result.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from sremkit.data.pairs import MISSING
from sremkit.worker_processes import one_thread

# The least cosine of near-duplicates. For EfficientNet-lite2, copies saved as JPEG 80 or at three quarters of the size
# lie above it (60 photographs of Flickr8k), and different photographs of its 8,091 below 0.93.
THRESHOLD = 0.95
MAX_IMAGES = 100_000  # above, only equal vectors are grouped: the search grows with n², a minute here
MAX_GROUP = 0.1  # of all images: a larger group means vectors that do not discriminate, not copies
_BLOCK = 2048  # rows compared at a time: one block of products is 16 MB
_SKETCH_WIDTH = 96
_SKETCH_ROWS = 2048  # rows that the projection is fitted to
_SLACK = 1e-4  # float32 products of unit vectors err by less
_MAX_SINGLE = 20_000  # above this, one product of whole blocks is cheaper than single cosines
_PAIRS_PER_CHUNK = 4096


def caption_groups(texts: Sequence[str]) -> np.ndarray:
    """Group captions that are equal up to case, spaces and punctuation; empty ones are no duplicates of each other.

    Returns:
        (m,) int64, numbered from 0 in the order of first appearance; MISSING for a caption without a duplicate.
    """
    first: dict[str, int] = {}
    leader = np.arange(len(texts), dtype=np.int64)
    for k, text in enumerate(texts):
        plain = plain_caption(text)
        if plain:
            leader[k] = first.setdefault(plain, k)
    return _numbered(leader)


def plain_caption(text: str) -> str:
    """The caption without what does not change its meaning: "A dog's  T-shirt!" is "a dogs t shirt".

    A caption of nothing but punctuation keeps it, lest "?" equal "!".
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.translate(_PUNCTUATION).split()) or " ".join(folded.split())


class _WithoutPunctuation(dict[int, str]):
    """For `str.translate`: punctuation becomes a space, an apostrophe nothing. Filled as characters turn up."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if character in "'’ʼ":
            self[code] = ""
        else:  # by category: in a regular expression \w would also drop the vowel signs of Hindi
            self[code] = " " if unicodedata.category(character).startswith("P") else character
        return self[code]


_PUNCTUATION = _WithoutPunctuation()


def image_groups(vectors: np.ndarray) -> np.ndarray:
    """Group near-duplicate images: the connected components of pairs with a cosine of at least THRESHOLD.

    Memory grows with n, never with n²; time is n² in a small width. Vectors (n, d) may be memory-mapped and of any
    float type. Rows of zeros or with numbers that are not finite, as for unreadable images, stay alone.

    Returns:
        (n,) int64, numbered from 0 in the order of first appearance; MISSING for an image without a duplicate.
    """
    if vectors.ndim != 2:
        raise ValueError(f"vectors must be (n, d), one row an image, and not {vectors.shape}")
    n = len(vectors)
    leader = np.arange(n, dtype=np.int64)  # of each image, the earliest one of its group
    if n > MAX_IMAGES:
        usable = np.concatenate([_unit(vectors[k : k + _BLOCK]).any(axis=1) for k in range(0, n, _BLOCK)])
        _, first, member = np.unique(row_keys(vectors), return_index=True, return_inverse=True)
        return _numbered(np.where(usable, first[member.reshape(-1)], leader))
    sketch = _sketch(vectors)
    for top in range(0, n, _BLOCK):
        for start in range(top, n, _BLOCK):
            _join_blocks(vectors, sketch, leader, top, start)
    return _numbered(leader)


def fold_groups(images: np.ndarray) -> np.ndarray:
    """A number for each image, (n,) int64, equal for near-duplicates: they belong to one fold of a cross-fitting."""
    # Centred: the vectors of some encoders all lie in one narrow cone, where every cosine is high.
    groups = image_groups(images - images.mean(axis=0))
    alone = groups == MISSING
    if np.bincount(groups[~alone], minlength=1).max() > max(MAX_GROUP * len(images), 2):
        return np.arange(len(images))
    return np.where(alone, groups.max() + np.cumsum(alone), groups)


def row_keys(rows: np.ndarray) -> np.ndarray:
    """A hash of each row's bytes, (n,) int64 from 0 to 2^63 - 1: equal rows have equal keys."""
    rows = np.ascontiguousarray(rows)
    return keys_of_digests(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)


def equal_groups(rows: np.ndarray) -> np.ndarray:
    """A number for each row, (n,) int64 from 0, the same for equal rows."""
    return np.unique(row_keys(rows), return_inverse=True)[1].reshape(-1)


def keys_of_digests(digests: Iterable[bytes]) -> np.ndarray:
    """Digests of 8 bytes as (n,) int64 from 0 to 2^63 - 1."""
    return (np.frombuffer(b"".join(digests), dtype="<u8") >> np.uint64(1)).astype(np.int64)


def _join_blocks(vectors: np.ndarray, sketch: np.ndarray, leader: np.ndarray, top: int, start: int) -> None:
    """Join, in place, the groups of all near-duplicates of two blocks."""
    rows, columns = slice(top, top + _BLOCK), slice(start, start + _BLOCK)
    bound = product(sketch[rows], sketch[columns].T)  # (block, block)
    if bound.max() < THRESHOLD - _SLACK:
        return
    possible = (bound >= THRESHOLD - _SLACK) & (leader[rows, None] != leader[None, columns])
    if np.count_nonzero(possible) > _MAX_SINGLE:
        possible &= product(_unit(vectors[rows]), _unit(vectors[columns]).T) >= THRESHOLD - _SLACK
    left, right = np.nonzero(possible)
    for first in range(0, len(left), _PAIRS_PER_CHUNK):
        a, b = left[first : first + _PAIRS_PER_CHUNK] + top, right[first : first + _PAIRS_PER_CHUNK] + start
        apart = leader[a] != leader[b]  # joins made since then leave fewer to check
        a, b = a[apart], b[apart]
        alike = _cosines(vectors, a, b) >= THRESHOLD - 1e-9  # equal vectors may round to a little below 1
        _join(leader, a[alike], b[alike])


def _sketch(vectors: np.ndarray) -> np.ndarray:
    """(n, k + 1): the unit vectors projected, and the norm of what the projection leaves out."""
    n, d = vectors.shape
    spread = np.linspace(0, n - 1, min(n, _SKETCH_ROWS)).astype(np.int64)
    sample = _unit(vectors[spread])
    # The directions that hold most of the vectors, so that little is left out.
    with one_thread():  # NumPy's would wait for each other in each of thousands of short steps
        directions = torch.linalg.eigh(torch.from_numpy(product(sample.T, sample))).eigenvectors
    basis = directions[:, -min(d, _SKETCH_WIDTH) :].numpy()  # (d, k)
    sketch = np.empty((n, basis.shape[1] + 1), dtype=np.float32)
    for start in range(0, n, _BLOCK):
        rows = slice(start, start + _BLOCK)
        unit = _unit(vectors[rows])
        inside = product(unit, basis)  # (block, k)
        sketch[rows, :-1] = inside
        sketch[rows, -1] = np.sqrt(np.maximum((unit * unit).sum(axis=1) - (inside * inside).sum(axis=1), 0))
    return sketch


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Of matrices, by PyTorch: its threads sleep while they wait, NumPy's keep others from running."""
    return (torch.from_numpy(left) @ torch.from_numpy(right)).numpy()


def _unit(rows: np.ndarray) -> np.ndarray:
    """Rows of norm 1 in float32; those without a direction become 0 and are then near nothing."""
    rows = rows.astype(np.float32)
    largest = np.abs(rows).max(axis=1, initial=0)
    usable = np.isfinite(largest) & (largest > 0)
    # First to a largest entry of 1: squares of very large or small numbers would leave float32.
    rows = np.where(usable[:, None], rows, 0) / np.where(usable, largest, 1)[:, None]
    length = np.linalg.norm(rows, axis=1)
    return rows / np.where(usable, length, 1)[:, None]


def _cosines(vectors: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    x, y = vectors[left].astype(np.float64), vectors[right].astype(np.float64)  # (p, d)
    dots, xx, yy = (np.einsum("pd,pd->p", a, b) for a, b in ((x, y), (x, x), (y, y)))
    return dots / np.sqrt(xx * yy)


def _join(leader: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Union of the groups of each pair, in place; every member points at the earliest one."""
    while len(left):
        a, b = leader[left], leader[right]
        apart = a != b
        left, right = np.minimum(a, b)[apart], np.maximum(a, b)[apart]
        np.minimum.at(leader, right, left)  # one of several new leaders wins; the others follow in the next round
        while not np.array_equal(above := leader[leader], leader):
            leader[:] = above


def _numbered(leader: np.ndarray) -> np.ndarray:
    """Group numbers in the order of first appearance, and MISSING for groups of one."""
    leaders, member_of, sizes = np.unique(leader, return_inverse=True, return_counts=True)
    numbers = np.full(len(leaders), MISSING, dtype=np.int64)
    numbers[sizes > 1] = np.arange(int((sizes > 1).sum()))
    return numbers[member_of]
