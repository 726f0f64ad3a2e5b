"""Prefetching: batches are read by threads and copied to the device while earlier ones are computed on.

    file ──threads──▶ pinned host memory ──copy stream──▶ device

A batch of regions is tens of megabytes, so the number of copies decides: one on the host, from the file into one of a
few pinned buffers, which are reused because allocating costs more than the copy. Features keep their stored dtype
and become float32 on the device. Reading releases the GIL, so threads suffice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import fields, replace
from math import prod

import numpy as np
import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.data.batches import Batches

InFlight = tuple[Batch, torch.cuda.Event | None]  # a batch, and when it has been copied; None on a CPU

#: One thread reads some 30,000 images of 36 regions a second from the page cache.
CUDA_THREADS = 4


def prefetch(
    batches: Batches,
    order: list[np.ndarray],
    device: torch.device | str,
    *,
    threads: int | None = None,
    staged: bool | None = None,
) -> Iterator[Batch]:
    """Yield `batches.take(rows)` on the device for each `rows` of `order`.

    An error in reading is raised where its batch would have come. Closing the iterator ends the threads.

    Args:
        order: the pair numbers of each batch, such as `batches.own_order(epoch)`.
        threads: by default `batches.workers`, and on a CUDA device at least four. With 0 nothing is prefetched.
        staged: read stored dtypes into reused buffers and convert to float32 on the device; by default on CUDA
            devices. On a CPU it would be one more copy.
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if threads is None:
        threads = max(batches.workers, CUDA_THREADS) if device.type == "cuda" else batches.workers
    if threads == 0:
        for rows in order:
            yield batches.take(rows).to(device, non_blocking=True)
        return
    copier = DeviceCopier(batches, device, staged=device.type == "cuda" if staged is None else staged)
    ahead = threads + 1
    buffers = [copier.buffer() for _ in range(ahead)]
    reading: deque[Future[Batch]] = deque()
    in_flight: deque[InFlight] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="prefetch", initializer=copier.start_thread)
    started = 0
    try:
        for number in range(len(order)):
            # Batch k is read into buffer k mod `ahead`, once the previous batch in it has been copied.
            while started < len(order) and started < number + len(in_flight) + ahead:
                reading.append(pool.submit(buffers[started % ahead].read, batches, order[started]))
                started += 1
            if not in_flight:
                in_flight.append(copier.send(reading.popleft().result(), buffers[number % ahead]))
            # If the next batch is ready, its copy overlaps with the computation on this one. A failed read waits
            # for its turn.
            if reading and reading[0].done() and reading[0].exception() is None:
                in_flight.append(copier.send(reading.popleft().result(), buffers[(number + 1) % ahead]))
            yield copier.receive(*in_flight.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class StagingBuffer:
    """Host memory for the image features of one batch, reused for later ones; pinned for CUDA devices."""

    def __init__(self, *, pinned: bool, staged: bool = True) -> None:
        self.pinned, self.staged = pinned, staged
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.copied: torch.cuda.Event | None = None  # when the last batch in here has reached the device

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The first bytes of the memory as an array."""
        size = prod(shape) * dtype.itemsize
        if len(self.memory) < size:
            self.memory = torch.empty(size, dtype=torch.uint8, pin_memory=self.pinned)
        return self.memory[:size].numpy().view(dtype).reshape(shape)

    def read(self, batches: Batches, rows: np.ndarray) -> Batch:
        if self.copied is not None:
            self.copied.synchronize()
        batch = batches.take(rows, allocate=self.allocate if self.staged else None)
        return batch.pin_memory() if self.pinned else batch


class DeviceCopier:
    """Copies batches from staging buffers to a device, on a CUDA stream of its own."""

    def __init__(self, batches: Batches, device: torch.device, *, staged: bool) -> None:
        self.device, self.staged = device, staged
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        features = batches.pairs.image_features
        self.scale, self.shift = self._constant(features, "scale"), self._constant(features, "shift")

    def _constant(self, features: object, name: str) -> Tensor | None:
        value = getattr(features, name, None)
        return None if value is None else torch.from_numpy(np.asarray(value)).to(self.device)

    def buffer(self) -> StagingBuffer:
        return StagingBuffer(pinned=self.stream is not None, staged=self.staged)

    def start_thread(self) -> None:
        """Select the device: a new thread starts with device 0."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def send(self, batch: Batch, buffer: StagingBuffer) -> InFlight:
        """Start the copy; the batch may be used after `receive`."""
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            moved = batch.to(self.device, non_blocking=True)
            moved = replace(moved, images=self._dequantized(moved.images))
            if self.stream is not None:
                buffer.copied = torch.cuda.Event(blocking=True)  # a thread that waits for it sleeps
                buffer.copied.record(self.stream)
        return moved, buffer.copied

    def receive(self, batch: Batch, copied: torch.cuda.Event | None) -> Batch:
        """Make the current stream wait for the copy, and the allocator for the current stream."""
        if copied is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(copied)
            for field in fields(batch):
                value = getattr(batch, field.name)
                if isinstance(value, Tensor):
                    value.record_stream(current)
        return batch

    def _dequantized(self, images: Tensor | None) -> Tensor | None:
        """As `FeatureSource.rows` returns them: float32, scaled and shifted, in memory of their own."""
        if images is None or not self.staged:
            return images
        raw = images.dtype != torch.float32
        images = images.to(torch.float32, copy=self.stream is None)
        images = images * self.scale if raw and self.scale is not None else images
        return images + self.shift if raw and self.shift is not None else images
