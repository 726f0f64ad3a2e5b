"""Batches of pairs: features read on demand, texts as padded word ids, in a seeded and resumable order.

The order is a pure function of seed and epoch, so a resumed run needs only the numbers of epoch and batch.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from sremkit.data.batch import Batch
from sremkit.data.features import Allocate, ArrayFeatures
from sremkit.data.pairs import MISSING, FeatureSource, Pairs
from sremkit.data.pixels import PixelFeatures
from sremkit.errors import DataError

# Batches that are sorted together: enough to find captions of similar length, few enough to stay random.
BATCHES_PER_BUCKET = 32
# These separate the random streams of scans and of image ids from those of epochs.
SCAN_STREAM, IMAGE_IDS = 0x100C, 0x1D5


class Tokenizer(Protocol):
    """Maps a text to word ids, such as a `Vocabulary`."""

    def encode(self, text: str) -> list[int]: ...


class Batches:
    """All batches of all epochs over some pairs.

    `epoch(e)` yields the batches of epoch e; `epoch(e, start=s)` resumes at batch s without reading the earlier
    ones. `prefetch` yields the same batches on a device, read ahead.

    Args:
        vocabulary: maps captions to word ids; without it a batch holds no words.
        bucket_by_length: captions of similar length share a batch, which reduces padding.
        unique_images: no image appears twice in a batch, so that no negative is a match.
        workers: threads that `prefetch` reads ahead with.
        image_id_seed: the image ids of batches are shuffled with this seed; else they are rows of the image features.
            In collections with five captions per image, pair // 5 would be the image before noise was injected.
        shard: rank and number of processes; each reads a consecutive part of every batch.
    """

    def __init__(
        self,
        pairs: Pairs,
        *,
        batch_size: int,
        vocabulary: Tokenizer | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        bucket_by_length: bool = False,
        unique_images: bool = False,
        workers: int = 0,
        image_id_seed: int | None = None,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        if vocabulary is None and pairs.text_features is None:
            raise DataError(f"{pairs.name} has no text features, so batches need a vocabulary to give words")
        if bucket_by_length and vocabulary is None:
            raise ValueError("bucket_by_length counts words, so it needs a vocabulary")
        self.pairs = pairs
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.bucket_by_length = bucket_by_length
        self.unique_images = unique_images
        self.workers = workers
        self.rank, self.world = shard
        self._image_ids = np.arange(pairs.num_images)  # by image row
        if image_id_seed is not None:
            self._image_ids = np.random.default_rng([image_id_seed, IMAGE_IDS]).permutation(pairs.num_images)
        self.words = None if vocabulary is None else WordIds(pairs.texts, vocabulary)

    def order(self, epoch: int) -> list[np.ndarray]:
        """Pair numbers of each batch of this epoch, over all processes."""
        batches = batch_order(
            len(self.pairs),
            self.batch_size,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            lengths=self.words.lengths if self.bucket_by_length and self.words is not None else None,
            image_of_text=self.pairs.image_of_text if self.unique_images else None,
        )
        # A batch with fewer pairs than processes would leave one of them without work.
        return [batch for batch in batches if len(batch) >= self.world]

    def own_order(self, epoch: int, *, start: int = 0) -> list[np.ndarray]:
        """Pair numbers of this process in each batch of this epoch, from batch `start` on."""
        return [np.array_split(batch, self.world)[self.rank] for batch in self.order(epoch)[start:]]

    def scan_order(self, round_: int) -> list[np.ndarray]:
        """Pair numbers of each batch of `every_pair`."""
        order = np.random.default_rng((self.seed, round_, SCAN_STREAM)).permutation(len(self.pairs))
        return np.array_split(order, math.ceil(len(self.pairs) / self.batch_size))

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """The batches of this epoch, from batch `start` on."""
        return (self.take(rows) for rows in self.own_order(epoch, start=start))

    def every_pair(self, round_: int) -> Iterator[Batch]:
        """Each pair exactly once, in random batches of about equal size; every process gets all of them."""
        return (self.take(rows) for rows in self.scan_order(round_))

    def paired_as(self, image_of_text: np.ndarray) -> Batches:
        """The same texts in the same order, paired with other images."""
        changed = copy.copy(self)
        changed.pairs = self.pairs.paired_as(image_of_text)
        return changed

    def image_ids(self, image_rows: np.ndarray) -> np.ndarray:
        """The ids that batches show for these rows of the image features."""
        return self._image_ids[image_rows]

    def image_rows(self, image_ids: np.ndarray) -> np.ndarray:
        """The rows of the image features of these ids."""
        return np.argsort(self._image_ids)[image_ids]

    def take(self, pair_ids: np.ndarray, *, allocate: Allocate | None = None) -> Batch:
        """One batch of exactly these pairs.

        Args:
            allocate: returns memory for the image features, which then keep their stored dtype, unscaled, where
                devices support it; see `prefetch`.
        """
        image_rows = self.pairs.image_of_text[np.asarray(pair_ids, dtype=np.int64)]
        images, region_mask = _as_tensors(self.pairs.image_features, image_rows, allocate)
        return replace(self.take_texts(pair_ids), images=images, region_mask=region_mask)

    def take_texts(self, pair_ids: np.ndarray) -> Batch:
        """The texts of these pairs without their images."""
        rows = np.ascontiguousarray(pair_ids, dtype=np.int64)
        sentences, _ = _as_tensors(self.pairs.text_features, rows)
        words, word_mask = (None, None) if self.words is None else self.words.padded(rows)
        return Batch(
            pair_id=torch.from_numpy(rows),
            image_id=torch.from_numpy(self.image_ids(self.pairs.image_of_text[rows])),
            words=words,
            word_mask=word_mask,
            sentences=sentences,
            max_total_words=None if word_mask is None else int(word_mask.sum()),
        )

    def take_images(self, image_rows: np.ndarray) -> Batch:
        """These images without texts; their pair numbers are `MISSING`."""
        rows = np.asarray(image_rows, dtype=np.int64)
        images, region_mask = _as_tensors(self.pairs.image_features, rows)
        return Batch(
            pair_id=torch.full((len(rows),), MISSING),
            image_id=torch.from_numpy(self.image_ids(rows)),
            images=images,
            region_mask=region_mask,
        )


class WordIds:
    """Word ids of every text, encoded once and stored flat: 566,000 captions take some 30 MB."""

    def __init__(self, texts: Sequence[str], vocabulary: Tokenizer) -> None:
        encoded = [np.array(vocabulary.encode(text), dtype=np.int32) for text in texts]
        self.lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
        if len(encoded) and self.lengths.min() == 0:
            raise DataError(f"text {int(self.lengths.argmin())} has no words; remove empty texts")
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.flat = np.concatenate(encoded) if encoded else np.zeros(0, dtype=np.int32)

    def padded(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Word ids (k, w) of these texts, 0 where absent, and the mask (k, w)."""
        lengths = self.lengths[rows]
        mask = np.arange(lengths.max())[None, :] < lengths[:, None]  # (k, w)
        words = np.zeros(mask.shape, dtype=np.int64)
        words[mask] = np.concatenate([self.flat[self.starts[k] : self.starts[k + 1]] for k in rows])
        return torch.from_numpy(words), torch.from_numpy(mask)


def _as_tensors(
    source: FeatureSource | None, rows: np.ndarray, allocate: Allocate | None = None
) -> tuple[torch.Tensor, torch.Tensor | None] | tuple[None, None]:
    if source is None:
        return None, None
    raw = None
    if allocate is not None and isinstance(source, ArrayFeatures | PixelFeatures):
        raw = source.raw_rows(rows, allocate)
    values, mask = source.rows(rows) if raw is None else raw
    return torch.from_numpy(values), None if mask is None else torch.from_numpy(mask)


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
        lengths: words of each text (num_pairs,); given, captions of similar length share a batch.
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
    buckets = [visited[start : start + bucket] for start in range(0, len(visited), bucket)]
    return np.concatenate([pairs[np.argsort(lengths[pairs], kind="stable")] for pairs in buckets])


def _without_repeated_images(visited: np.ndarray, image_of_text: np.ndarray, batch_size: int) -> list[np.ndarray]:
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
