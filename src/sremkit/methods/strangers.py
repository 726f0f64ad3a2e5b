"""Whether there are wrong pairs at all: how many pairs fare as badly as strangers do.

A mixture finds two heaps in any list of numbers, also where every pair is right and some are merely hard. But what a
wrong pair looks like is known: an image with the text of its neighbour in the batch is one. Its own text and its
neighbour's own image are left out of the candidates, as a wrong pair's true partners are not there either, and the
neighbour's probability is remembered like that of a pair. If a share s of the pairs were wrong and nothing of them
learnt yet, s / 2 of the pairs would lie below the median of these strangers. So

    resemblance = 2 (share of pairs below the strangers' median) / (weight of the mixture's lower heap)

is about 1 where that heap is one of wrong pairs, and near 0 where it is one of hard ones. What has been learnt of wrong
pairs lowers it, so it is asked at the end of the warm-up, and of no later epoch.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from sremkit.objectives.candidates import diagonal_mask, keep_valid

ALIKE = 1e-3  # memories this close are equal: very unlikely pairs are all remembered as one in a million


class Strangers(NamedTuple):
    """Each image i with the text i + 1."""

    probability: (
        Tensor  # (b,) that they take each other for a pair, without their own; mean of both directions
    )
    are_strangers: Tensor  # (b,) bool: they are candidates for each other, as captions of one image are not


def strangers_of(logits: Tensor, valid: Tensor | None = None) -> Strangers:
    """The strangers of a batch.

    Args:
        logits: (b, b), rows images, columns texts, the given pairs on the diagonal.
        valid: (b, b) bool, True where a candidate counts.
    """
    foreign = ~diagonal_mask(logits) if valid is None else valid & ~diagonal_mask(logits)  # (b, b)
    others = keep_valid(logits, foreign)
    i2t, t2i = (_of_neighbors(others.softmax(dim)) for dim in (1, 0))
    return Strangers((i2t + t2i) / 2, _of_neighbors(foreign))


def _of_neighbors(matrix: Tensor) -> Tensor:
    """The entries (i, i + 1), the last one's neighbour being the first: (b,)."""
    return matrix.roll(-1, dims=1).diagonal()


def resemblance(memory: Tensor, strangers: Tensor, lower_weight: float) -> float:
    """How far the lower heap of a mixture over the pairs' memories consists of pairs that fare like strangers.

    Args:
        memory: (n,) of pairs.
        strangers: (k,) of strangers.
        lower_weight: share of the pairs that the mixture gives to its lower heap.
    """
    below = (memory <= strangers.median() + ALIKE).double().mean().item()
    return 2 * below / max(lower_weight, 1e-9)
