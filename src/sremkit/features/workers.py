"""Encoding in chunks of rows by worker processes; chunks are returned in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from sremkit.data.pairs import ImageSource
from sremkit.errors import DataError
from sremkit.features.cache import CachedRows
from sremkit.features.encoders import ImageEncoder, TextEncoder
from sremkit.features.store import DTYPE
from sremkit.worker_processes import init_worker

TEXTS_PER_CHUNK = 256  # fixed, because the last bits of a vector depend on the other texts of its batch


class Chunk(NamedTuple):
    """Features of consecutive rows."""

    start: int
    arrays: dict[str, np.ndarray]  # by kind: (k, ...) float16, NaN for unreadable images
    problems: dict[int, str]  # by row


@dataclass(eq=False)
class ImageJob(Dataset[Chunk]):
    """Decodes and encodes images; unreadable ones are reported."""

    group: ClassVar[str] = "images"

    images: ImageSource
    encoder: ImageEncoder
    kinds: Sequence[str]
    cached: CachedRows
    per_chunk: int

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: range) -> Chunk:
        shapes = {"pooled": (self.encoder.dim,), "grid": (self.encoder.num_regions, self.encoder.dim)}
        arrays = {kind: np.full((len(rows), *shapes[kind]), np.nan, dtype=DTYPE) for kind in self.kinds}
        problems: dict[int, str] = {}
        for k, row in enumerate(rows):
            if row in self.cached:
                for kind in self.kinds:
                    arrays[kind][k] = self.cached.read(kind, row)
                continue
            try:
                image = self.images.open(row)
            except DataError as problem:
                problems[row] = str(problem)
                continue
            features = self.encoder.encode(image)
            for kind in self.kinds:
                arrays[kind][k] = getattr(features, kind)
        return Chunk(rows.start, arrays, problems)


@dataclass(eq=False)
class TextJob(Dataset[Chunk]):
    """Encodes texts."""

    group: ClassVar[str] = "texts"
    per_chunk: ClassVar[int] = TEXTS_PER_CHUNK

    texts: Sequence[str]
    encoder: TextEncoder
    cached: CachedRows

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: range) -> Chunk:
        vectors = np.empty((len(rows), self.encoder.dim), dtype=DTYPE)
        new = [row for row in rows if row not in self.cached]
        if new:
            encoded = self.encoder.encode([self.texts[row] for row in new])
            vectors[np.array(new) - rows.start] = encoded.astype(DTYPE)
        for k, row in enumerate(rows):
            if row in self.cached:
                vectors[k] = self.cached.read("sentences", row)
        return Chunk(rows.start, {"sentences": vectors}, {})


def encode_chunks(job: ImageJob | TextJob, *, start: int, workers: int) -> Iterator[Chunk]:
    """Encode all rows from `start` on, in order; every chunk is computed by one thread."""
    if start >= len(job):
        return
    if num_uncached(job, start) > 0:
        job.encoder.load()  # once, before the workers are forked
    ranges = [range(k, min(k + job.per_chunk, len(job))) for k in range(start, len(job), job.per_chunk)]
    threads = torch.get_num_threads()
    # A DataLoader returns results in order, a few chunks ahead, and re-raises errors.
    loader = DataLoader(
        job,
        sampler=ranges,
        batch_size=None,
        num_workers=workers,
        collate_fn=_identity,
        worker_init_fn=init_worker,
        generator=torch.Generator(),  # else the loader would advance the global generator
    )
    try:
        torch.set_num_threads(1)
        yield from loader
    finally:
        torch.set_num_threads(threads)


def num_uncached(job: ImageJob | TextJob, start: int) -> int:
    """Number of rows from `start` on that have to be encoded."""
    return max(len(job) - start, 0) - job.cached.count(start)


def _identity(chunk: Any) -> Any:
    return chunk
