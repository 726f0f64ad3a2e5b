"""Decoding and resizing of images, in worker processes where there are many."""

from __future__ import annotations

import multiprocessing
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import NamedTuple

import numpy as np

from sremkit.data.image_transform import ImageTransform
from sremkit.data.pairs import ImageSource
from sremkit.errors import DataError
from sremkit.worker_processes import init_worker

CHUNK = 8  # images of one task: large enough to send, small enough to divide a batch evenly


class Decoded(NamedTuple):
    """Some images; those that cannot be read are 0 everywhere."""

    rows: np.ndarray  # (k,) int64
    pixels: np.ndarray  # (k, 3, h, w) uint8
    problems: dict[int, str]  # by row


class Decoder:
    """Images by row as uint8 pixels of one size.

    Args:
        workers: processes that decode; with 0 this process does it. They start here, and end with `close` or with the
            decoder.
    """

    def __init__(self, images: ImageSource, transform: ImageTransform, *, workers: int = 0) -> None:
        self.images, self.transform, self.workers = images, transform, workers
        self._pool: ProcessPoolExecutor | None = None
        if workers > 0:
            # Forked like the workers of a DataLoader: a started interpreter would import everything again.
            method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
            self._pool = ProcessPoolExecutor(
                workers, multiprocessing.get_context(method), initializer=_start_worker, initargs=(images, transform)
            )
            self._pool.submit(_ready).result()  # forks all workers now, from this thread
            self._finalizer = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def decode(self, rows: np.ndarray, out: np.ndarray | None = None) -> Decoded:
        """Decode these images, in this order; several threads may call it.

        Args:
            out: (k, 3, h, w) uint8, into which the pixels are written.
        """
        rows = np.asarray(rows, dtype=np.int64)
        pixels = np.empty((len(rows), *self.transform.shape), dtype=np.uint8) if out is None else out
        if self._pool is None:
            return decode_images(self.images, self.transform, rows, pixels)
        problems: dict[int, str] = {}
        start = 0
        for part in [self._pool.submit(_decode_part, rows[k : k + CHUNK]) for k in range(0, len(rows), CHUNK)]:
            decoded = part.result()
            pixels[start : start + len(decoded.rows)] = decoded.pixels
            problems |= decoded.problems
            start += len(decoded.rows)
        return Decoded(rows, pixels, problems)

    def stream(self, start: int = 0) -> Iterator[Decoded]:
        """All images from row `start` on, in order, a few chunks ahead of the caller."""
        parts = [np.arange(k, min(k + CHUNK, len(self.images))) for k in range(start, len(self.images), CHUNK)]
        if self._pool is None:
            yield from map(self.decode, parts)
            return
        ahead: deque[Future[Decoded]] = deque()
        for part in parts:
            ahead.append(self._pool.submit(_decode_part, part))
            if len(ahead) > 4 * self.workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._finalizer.detach()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def decode_images(images: ImageSource, transform: ImageTransform, rows: np.ndarray, out: np.ndarray) -> Decoded:
    """Decode and resize images into `out`; unreadable ones are reported."""
    problems: dict[int, str] = {}
    for k, row in enumerate(rows.tolist()):
        try:
            out[k] = transform.resize(images.open(row))
        except DataError as problem:
            out[k] = 0
            problems[row] = str(problem)
    return Decoded(rows, out, problems)


_of_worker: tuple[ImageSource, ImageTransform] | None = None  # in a worker process: what it decodes


def _start_worker(images: ImageSource, transform: ImageTransform) -> None:
    global _of_worker
    _of_worker = images, transform
    init_worker()


def _ready() -> None:
    """Nothing; a task that the first worker can do."""


def _decode_part(rows: np.ndarray) -> Decoded:
    assert _of_worker is not None
    images, transform = _of_worker
    return decode_images(images, transform, rows, np.empty((len(rows), *transform.shape), dtype=np.uint8))
