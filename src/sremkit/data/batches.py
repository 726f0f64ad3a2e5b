"""Batches from pairs: features read when needed, words padded and masked, in a seeded, resumable order."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from sremkit.data.batch import Batch
from sremkit.data.features import ArrayFeatures, MappedFeatures, Place
from sremkit.data.order import batch_order
from sremkit.data.pairs import FeatureSource, OnError, Pairs
from sremkit.errors import DataError


class TextEncoder(Protocol):
    """Anything that turns a text into word numbers, such as a `Vocabulary`."""

    def encode(self, text: str) -> list[int]: ...


LOOKING = 0x100C  # keeps the orders of passes apart from those of training


class Batches:
    """All batches of all epochs over some pairs.

    `epoch(e)` gives the batches of epoch e; `epoch(e, start=s)` goes on at batch s without reading the
    ones before it. The order depends on `seed` and e alone, not on `workers` or on what was read before.

    Args:
        vocabulary: turns captions into word numbers; without it a batch holds no words.
        bucket_by_length: captions of like length share a batch, so that little is padding.
        unique_images: no image appears twice in a batch, so that no negative is secretly a match.
        on_error: "skip" leaves out pairs whose features cannot be read and names them in `Batch.skipped`.
        workers: processes that read ahead; 0 reads in this one.
        shard: rank and number of the processes that share every batch; each reads a consecutive part of it.
    """

    def __init__(
        self,
        pairs: Pairs,
        *,
        batch_size: int,
        vocabulary: TextEncoder | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        bucket_by_length: bool = False,
        unique_images: bool = False,
        workers: int = 0,
        pin_memory: bool = False,
        on_error: OnError = "raise",
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
        self.pin_memory = pin_memory
        self.rank, self.world = shard
        words = None if vocabulary is None else WordNumbers(pairs.texts, vocabulary)
        self._collection = _Collection(pairs, words, on_error)

    def order(self, epoch: int) -> list[np.ndarray]:
        """Pair numbers of each batch of this epoch, over all processes."""
        words = self._collection.words
        batches = batch_order(
            len(self.pairs),
            self.batch_size,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            lengths=words.lengths if self.bucket_by_length and words is not None else None,
            image_of_text=self.pairs.image_of_text if self.unique_images else None,
        )
        # A batch with fewer pairs than processes would leave one of them with nothing to do.
        return [batch for batch in batches if len(batch) >= self.world]

    def own_order(self, epoch: int, *, start: int = 0) -> list[np.ndarray]:
        """Pair numbers of each batch of this epoch from batch `start` on, those of this process."""
        return [np.array_split(batch, self.world)[self.rank] for batch in self.order(epoch)[start:]]

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """The batches of this epoch, from batch `start` on."""
        loader = DataLoader(
            self._collection,
            sampler=self.own_order(epoch, start=start),
            batch_size=None,  # an item of the collection is a whole batch
            num_workers=self.workers,
            pin_memory=self.pin_memory,
            generator=torch.Generator(),  # else starting the loader would advance the global generator
        )
        return iter(loader)

    def paired_as(self, image_of_text: np.ndarray) -> Batches:
        """The same texts in the same order, given with other images."""
        changed = copy.copy(self)
        changed.pairs = self.pairs.paired_as(image_of_text)
        changed._collection = copy.copy(self._collection)
        changed._collection.image_of_text = changed.pairs.image_of_text
        return changed

    def every_pair(self, round_: int) -> Iterator[Batch]:
        """Each pair exactly once, in random batches of about equal size, whole in every process.

        For looking at all pairs between epochs; the order belongs to `seed` and `round_`, and to no epoch.
        """
        return (self.take(rows) for rows in self.looking_order(round_))

    def looking_order(self, round_: int) -> list[np.ndarray]:
        """The pairs of each batch of `every_pair`."""
        order = np.random.default_rng((self.seed, round_, LOOKING)).permutation(len(self.pairs))
        return np.array_split(order, math.ceil(len(order) / self.batch_size))

    def take(self, pair_ids: np.ndarray, *, place: Place | None = None) -> Batch:
        """One batch of exactly these pairs.

        Args:
            place: gives memory for the image features, which then stay as they are stored, not scaled, where
                a device can take them so. For readers that go on to a device; see `prefetch`.
        """
        return self._collection.read(np.asarray(pair_ids, dtype=np.int64), place)

    def take_images(self, image_rows: np.ndarray) -> Batch:
        """These images alone, each once, without texts; their pair numbers are -1."""
        return self._collection.read_images(np.asarray(image_rows, dtype=np.int64))

    def take_texts(self, pair_ids: np.ndarray) -> Batch:
        """The texts of these pairs alone; their images are not read."""
        return self._collection.read_texts(np.asarray(pair_ids, dtype=np.int64))


class WordNumbers:
    """Every text as word numbers, encoded once and kept flat: 566,000 captions take some 30 MB."""

    def __init__(self, texts: Sequence[str], vocabulary: TextEncoder) -> None:
        encoded = [np.array(vocabulary.encode(text), dtype=np.int32) for text in texts]
        self.lengths = np.array([len(numbers) for numbers in encoded], dtype=np.int64)
        if len(encoded) and self.lengths.min() == 0:
            raise DataError(f"text {int(self.lengths.argmin())} gives no words; leave empty texts out")
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.flat = np.concatenate(encoded) if encoded else np.zeros(0, dtype=np.int32)

    def padded(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Word numbers (k, w) of these texts, 0 where absent, and the mask (k, w)."""
        lengths = self.lengths[rows]
        mask = np.arange(lengths.max())[None, :] < lengths[:, None]  # (k, w)
        words = np.zeros(mask.shape, dtype=np.int64)
        words[mask] = np.concatenate([self.flat[self.starts[k] : self.starts[k + 1]] for k in rows])
        return torch.from_numpy(words), torch.from_numpy(mask)


class _Collection(Dataset[Batch]):
    """Turns an array of pair numbers into a batch; this is what worker processes hold."""

    def __init__(self, pairs: Pairs, words: WordNumbers | None, on_error: OnError) -> None:
        self.image_of_text = pairs.image_of_text
        self.image_features = pairs.image_features
        self.text_features = pairs.text_features
        self.pair_ids = pairs.pair_ids
        self.words = words
        self.on_error = on_error

    def __getitem__(self, rows: np.ndarray) -> Batch:
        return self.read(rows)

    def read(self, rows: np.ndarray, place: Place | None = None) -> Batch:
        skipped: tuple[str, ...] = ()
        try:
            return self._read(rows, place=place)
        except DataError:
            if self.on_error == "raise":
                raise
            rows, skipped = self._readable(rows)
            if not len(rows):
                raise
        return self._read(rows, skipped, place=place)

    def _read(self, rows: np.ndarray, skipped: tuple[str, ...] = (), *, place: Place | None = None) -> Batch:
        images, region_mask = _as_tensors(self.image_features, self.image_of_text[rows], place)
        return replace(self.read_texts(rows), images=images, region_mask=region_mask, skipped=skipped)

    def read_texts(self, rows: np.ndarray) -> Batch:
        sentences, _ = _as_tensors(self.text_features, rows)
        words, word_mask = (None, None) if self.words is None else self.words.padded(rows)
        return Batch(
            pair_id=torch.from_numpy(np.ascontiguousarray(rows)),
            image_id=torch.from_numpy(self.image_of_text[rows]),
            words=words,
            word_mask=word_mask,
            sentences=sentences,
            most_words=None if word_mask is None else int(word_mask.sum()),
        )

    def read_images(self, image_rows: np.ndarray) -> Batch:
        images, region_mask = _as_tensors(self.image_features, image_rows)
        return Batch(
            pair_id=torch.full((len(image_rows),), -1),
            image_id=torch.from_numpy(image_rows),
            images=images,
            region_mask=region_mask,
        )

    def _readable(self, rows: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
        """Read pair by pair to find out which ones fail: slow, but only after a failure."""
        good, skipped = [], []
        for row in rows:
            try:
                self._read(np.array([row]))
            except DataError as problem:
                skipped.append(f"pair {self.pair_ids[row]}: {problem}")
            else:
                good.append(row)
        return np.array(good, dtype=np.int64), tuple(skipped)


def _as_tensors(
    source: FeatureSource | None, rows: np.ndarray, place: Place | None = None
) -> tuple[torch.Tensor, torch.Tensor | None] | tuple[None, None]:
    if source is None:
        return None, None
    raw = None
    if place is not None and isinstance(source, ArrayFeatures | MappedFeatures):
        raw = source.raw_rows(rows, place)
    values, mask = source.rows(rows) if raw is None else raw
    return torch.from_numpy(values), None if mask is None else torch.from_numpy(mask)
