"""Captions that say the same and pictures that look the same, as numbered groups.

Two pictures are alike when the cosine of their feature vectors reaches a threshold. Comparing all of them
costs n²d; most of it is saved by a bound. With P an orthonormal projection to a few dimensions, and rest(x)
the length of what it leaves out,

    x·y  <=  Px·Py + rest(x) rest(y),

so a pair whose right-hand side misses the threshold needs no further look. The bound holds for every P: the
choice of P, and rounding in it, change the time and never the result.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

ALONE = -1  # the group number of what has no duplicate
_BLOCK = 2048  # rows compared at a time: one block of products is 16 MB
_SKETCH_WIDTH = 96
_SKETCH_ROWS = 2048  # rows that the projection is fitted to
_SLACK = 1e-4  # float32 products of unit vectors err by less
_MANY = 20_000  # above this, one product of whole blocks is cheaper than looking at pairs one by one
_CHECKED_AT_ONCE = 4096


def caption_groups(texts: Sequence[str]) -> np.ndarray:
    """Group captions that are equal up to case, spaces and punctuation.

    Returns:
        (m,) int64, numbered from 0 in the order of first appearance; -1 for a caption that stands alone.
        Empty captions are no duplicates of each other: nothing is said twice.
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


def picture_groups(vectors: np.ndarray, threshold: float = 0.95) -> np.ndarray:
    """Group pictures whose feature vectors are nearly parallel, directly or through others in between.

    Memory grows with n, never with n²; time is n² in a small width. Vectors may be memory-mapped and of any
    float type. Rows of zeros or with numbers that are not finite, as for unreadable pictures, stay alone.

    Args:
        vectors: (n, d).
        threshold: the least cosine of near-duplicates, from 0.5 to 1. For EfficientNet-lite2, copies saved as
            JPEG 80 or at three quarters of the size lie above 0.95 (60 photographs of Flickr8k), and different
            photographs of its 8,091 below 0.93. Encoders that spread pictures less, such as CLIP, need more.

    Returns:
        (n,) int64, numbered from 0 in the order of first appearance; -1 for a picture that stands alone.
    """
    if vectors.ndim != 2:
        raise ValueError(f"vectors must be (n, d), one row a picture, and not {vectors.shape}")
    if not 0.5 <= threshold <= 1:
        raise ValueError(f"the threshold is a cosine from 0.5 to 1, and not {threshold}")
    n = len(vectors)
    leader = np.arange(n, dtype=np.int64)  # of each picture, the earliest one of its group
    sketch = _sketch(vectors)
    for top in range(0, n, _BLOCK):
        for start in range(top, n, _BLOCK):
            _join_blocks(vectors, sketch, leader, top, start, threshold)
    return _numbered(leader)


def _join_blocks(
    vectors: np.ndarray, sketch: np.ndarray, leader: np.ndarray, top: int, start: int, threshold: float
) -> None:
    """Join, in place, the groups of all alike pictures of two blocks."""
    rows, columns = slice(top, top + _BLOCK), slice(start, start + _BLOCK)
    bound = sketch[rows] @ sketch[columns].T  # (block, block)
    if bound.max() < threshold - _SLACK:
        return
    possible = (bound >= threshold - _SLACK) & (leader[rows, None] != leader[None, columns])
    if np.count_nonzero(possible) > _MANY:
        possible &= _unit(vectors[rows]) @ _unit(vectors[columns]).T >= threshold - _SLACK
    left, right = np.nonzero(possible)
    for first in range(0, len(left), _CHECKED_AT_ONCE):
        a, b = left[first : first + _CHECKED_AT_ONCE] + top, right[first : first + _CHECKED_AT_ONCE] + start
        apart = leader[a] != leader[b]  # joins made since then leave fewer to check
        a, b = a[apart], b[apart]
        alike = _cosines(vectors, a, b) >= threshold - 1e-9  # equal vectors may round to a little below 1
        _join(leader, a[alike], b[alike])


def _sketch(vectors: np.ndarray) -> np.ndarray:
    """(n, k + 1): the unit vectors projected, and the length of what the projection leaves out."""
    n, d = vectors.shape
    spread = np.linspace(0, n - 1, min(n, _SKETCH_ROWS)).astype(np.int64)
    sample = _unit(vectors[spread])
    # The directions that hold most of the vectors, so that little is left out.
    _, directions = np.linalg.eigh(sample.T @ sample)
    basis = directions[:, -min(d, _SKETCH_WIDTH) :]  # (d, k)
    sketch = np.empty((n, basis.shape[1] + 1), dtype=np.float32)
    for start in range(0, n, _BLOCK):
        rows = slice(start, start + _BLOCK)
        unit = _unit(vectors[rows])
        inside = unit @ basis  # (block, k)
        sketch[rows, :-1] = inside
        sketch[rows, -1] = np.sqrt(np.maximum((unit * unit).sum(axis=1) - (inside * inside).sum(axis=1), 0))
    return sketch


def _unit(rows: np.ndarray) -> np.ndarray:
    """Rows at length 1 in float32; those without a direction become 0 and are then like nothing."""
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
    """Unite the groups of each pair, in place; everybody points straight at the earliest member."""
    while len(left):
        a, b = leader[left], leader[right]
        apart = a != b
        left, right = np.minimum(a, b)[apart], np.maximum(a, b)[apart]
        np.minimum.at(leader, right, left)  # of several new leaders one wins; the others come round again
        while not np.array_equal(above := leader[leader], leader):
            leader[:] = above


def _numbered(leader: np.ndarray) -> np.ndarray:
    """Group numbers in the order of first appearance, and -1 for groups of one."""
    leaders, member_of, sizes = np.unique(leader, return_inverse=True, return_counts=True)
    numbers = np.full(len(leaders), ALONE, dtype=np.int64)
    numbers[sizes > 1] = np.arange(int((sizes > 1).sum()))
    return numbers[member_of]
