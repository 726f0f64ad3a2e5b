"""In which order pairs are visited: a pure function of seed and epoch.

Because nothing is drawn while iterating, batch s of epoch e is the same after any interruption, and a
resumed run needs to remember two numbers only.
"""

from __future__ import annotations

from collections import deque

import numpy as np

# A bucket holds this many batches: enough to find captions of like length, few enough to stay random.
BATCHES_PER_BUCKET = 32


def batch_order(
    num_pairs: int,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    drop_last: bool = False,
    lengths: np.ndarray | None = None,
    image_of_text: np.ndarray | None = None,
) -> list[np.ndarray]:
    """The batches of one epoch, each an array of pair numbers; every pair appears exactly once.

    Args:
        drop_last: leave out batches that are not full.
        lengths: words of each text (num_pairs,); given, captions of like length share a batch.
        image_of_text: image of each text (num_pairs,); given, no image appears twice in a batch.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    rng = np.random.default_rng([seed, epoch])
    visited = rng.permutation(num_pairs) if shuffle else np.arange(num_pairs)
    if lengths is not None:
        visited = _sorted_within_buckets(visited, lengths, batch_size * BATCHES_PER_BUCKET)
    if image_of_text is None:
        batches = [visited[start : start + batch_size] for start in range(0, num_pairs, batch_size)]
    else:
        batches = _without_repeated_images(visited, image_of_text, batch_size)
    if drop_last:
        batches = [batch for batch in batches if len(batch) == batch_size]
    if lengths is not None and shuffle:
        batches = [batches[k] for k in rng.permutation(len(batches))]  # else short captions come first
    return batches


def _sorted_within_buckets(visited: np.ndarray, lengths: np.ndarray, bucket: int) -> np.ndarray:
    pieces = [visited[start : start + bucket] for start in range(0, len(visited), bucket)]
    return np.concatenate([piece[np.argsort(lengths[piece], kind="stable")] for piece in pieces])


def _without_repeated_images(
    visited: np.ndarray, image_of_text: np.ndarray, batch_size: int
) -> list[np.ndarray]:
    """Fill batches in order; a pair whose image is in the batch already waits for the next one."""
    batches: list[list[int]] = []
    waiting: dict[int, deque[int]] = {}  # image -> its pairs that had to wait
    stream = iter(visited.tolist())
    exhausted = False
    while not exhausted or waiting:
        batch: dict[int, int] = {}  # image -> pair
        for image in list(waiting)[:batch_size]:
            batch[image] = waiting[image].popleft()
            if not waiting[image]:
                del waiting[image]
        while len(batch) < batch_size:
            pair = next(stream, None)
            if pair is None:
                exhausted = True
                break
            image = int(image_of_text[pair])
            if image in batch:
                waiting.setdefault(image, deque()).append(pair)
            else:
                batch[image] = pair
        if batch:
            batches.append(list(batch.values()))
    return [np.array(batch, dtype=np.int64) for batch in batches]
