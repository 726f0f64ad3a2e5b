"""The work of an extraction in chunks of rows, done by worker processes and handed back in order."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from sremkit.data.pairs import ImageSource
from sremkit.errors import DataError
from sremkit.features.earlier import EarlierRows
from sremkit.features.pictures import PictureFeatures
from sremkit.features.store import DTYPE

if TYPE_CHECKING:
    from PIL.Image import Image

TEXTS_PER_CHUNK = 256  # fixed, because a vector's last bits depend on the texts it shares a batch with
PARENT_SECONDS = 1.0  # between two looks whether the parent is still there


class EncodesPictures(Protocol):
    """What an extraction needs of a picture encoder."""

    description: str
    dim: int
    num_places: int

    def load(self) -> None: ...

    def encode(self, picture: Image) -> PictureFeatures: ...


class EncodesTexts(Protocol):
    """What an extraction needs of a sentence encoder."""

    description: str
    dim: int

    def load(self) -> None: ...

    def encode(self, texts: Sequence[str]) -> np.ndarray: ...


class Chunk(NamedTuple):
    """Features of consecutive rows."""

    first: int
    arrays: dict[str, np.ndarray]  # by kind: (k, ...) float16, NaN where there is a problem
    problems: dict[int, str]  # by row


class PictureJob(Dataset[Chunk]):
    """Decodes and encodes pictures; one that cannot be decoded becomes a problem."""

    group = "images"

    def __init__(
        self,
        images: ImageSource,
        encoder: EncodesPictures,
        kinds: Sequence[str],
        *,
        per_chunk: int,
        earlier: EarlierRows | None = None,
    ) -> None:
        self.images = images
        self.encoder = encoder
        self.kinds = kinds
        self.per_chunk = per_chunk
        self.earlier = earlier or EarlierRows()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: range) -> Chunk:
        shapes = {"pooled": (self.encoder.dim,), "grid": (self.encoder.num_places, self.encoder.dim)}
        arrays = {kind: np.full((len(rows), *shapes[kind]), np.nan, dtype=DTYPE) for kind in self.kinds}
        problems: dict[int, str] = {}
        for k, row in enumerate(rows):
            if self.earlier.has(row):
                for kind in self.kinds:
                    arrays[kind][k] = self.earlier.take(kind, row)
                continue
            try:
                picture = self.images.open(row)
            except DataError as problem:
                problems[row] = str(problem)
                continue
            features = self.encoder.encode(picture)
            for kind in self.kinds:
                arrays[kind][k] = getattr(features, kind)
        return Chunk(rows.start, arrays, problems)


class TextJob(Dataset[Chunk]):
    """Encodes texts."""

    group = "texts"
    per_chunk = TEXTS_PER_CHUNK

    def __init__(
        self, texts: Sequence[str], encoder: EncodesTexts, *, earlier: EarlierRows | None = None
    ) -> None:
        self.texts = texts
        self.encoder = encoder
        self.earlier = earlier or EarlierRows()

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: range) -> Chunk:
        vectors = np.empty((len(rows), self.encoder.dim), dtype=DTYPE)
        new = [row for row in rows if not self.earlier.has(row)]
        if new:
            encoded = self.encoder.encode([self.texts[row] for row in new])
            vectors[np.array(new) - rows.start] = encoded.astype(DTYPE)
        for k, row in enumerate(rows):
            if self.earlier.has(row):
                vectors[k] = self.earlier.take("sentences", row)
        return Chunk(rows.start, {"sentences": vectors}, {})


def chunks(job: PictureJob | TextJob, *, start: int, workers: int) -> Iterator[Chunk]:
    """Every chunk from row `start` on, in order; each is computed by one thread, whoever does it."""
    if start >= len(job):
        return
    if num_new(job, start) > 0:
        job.encoder.load()  # once, before the workers are forked from this process
    ranges = [range(k, min(k + job.per_chunk, len(job))) for k in range(start, len(job), job.per_chunk)]
    threads = torch.get_num_threads()
    # A DataLoader hands results back in order, a few chunks ahead, and passes errors on.
    loader = DataLoader(
        job,
        sampler=ranges,
        batch_size=None,
        num_workers=workers,
        collate_fn=_as_it_is,
        worker_init_fn=_follow_the_parent,
        generator=torch.Generator(),  # else starting the loader would advance the global generator
    )
    try:
        torch.set_num_threads(1)
        yield from loader
    finally:
        torch.set_num_threads(threads)


def num_new(job: PictureJob | TextJob, start: int) -> int:
    """How many rows from `start` on have to be encoded."""
    return max(len(job) - start, 0) - job.earlier.count(start)


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _as_it_is(chunk: Any) -> Any:
    return chunk


def _follow_the_parent(worker: int) -> None:
    """Leave Ctrl-C to the parent, and end when it is gone: a worker that waits to hand over would stay for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_end_without, args=(parent.pid,), daemon=True).start()


def _end_without(parent: int | None) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)
