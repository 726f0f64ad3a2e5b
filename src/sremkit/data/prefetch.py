"""Batches on their way to the device before they are asked for.

    file ──threads──▶ memory that the device reads by itself ──a stream of its own──▶ device

A batch of regions is tens of megabytes, so what counts is how often it is copied. Here it is copied once on the
host: from the file into one of a few pieces of pinned memory, which are used again and again, because fresh
memory costs more than the copy. Numbers stay as they are stored, often in half precision, and become
float32 on the device. Threads do it: reading gives up the interpreter's lock, and processes would have to hand
their batches over by one more copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.data.batches import Batches

#: One thread reads some 30,000 images of 36 regions a second where the file is in the system's cache.
CUDA_THREADS = 4


def prefetched(
    batches: Batches, epoch: int, device: torch.device | str, *, start: int = 0, **options: Any
) -> Iterator[Batch]:
    """The batches of `batches.epoch(epoch, start=start)`, the same in the same order, on the device.

    Args:
        options: those of `brought`.
    """
    return brought(batches, batches.own_order(epoch, start=start), device, **options)


def brought(
    batches: Batches,
    order: list[np.ndarray],
    device: torch.device | str,
    *,
    threads: int | None = None,
    ahead: int | None = None,
    keep_memory: bool | None = None,
) -> Iterator[Batch]:
    """Batches of these pairs on the device.

    An error in reading is raised where its batch would have come. Leaving early ends the threads.

    Args:
        order: the pairs of each batch.
        threads: how many read ahead; by default `batches.workers`, and on a CUDA device at least four. With 0
            nothing is read ahead.
        ahead: batches that are read or wait to be used at a time; one more than threads, unless given.
        keep_memory: read what is stored into memory that is used again, and make float32 of it on the device;
            by default on CUDA devices. On a CPU it would be one copy more.
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if threads is None:
        threads = max(batches.workers, CUDA_THREADS) if device.type == "cuda" else batches.workers
    if threads == 0:
        return (batches.take(rows).to(device, non_blocking=True) for rows in order)
    if keep_memory is None:
        keep_memory = device.type == "cuda"
    transport = Transport(batches, device, keep_memory=keep_memory)
    return _read_ahead(batches, order, transport, threads=threads, ahead=ahead or threads + 1)


def _read_ahead(
    batches: Batches, order: list[np.ndarray], transport: Transport, *, threads: int, ahead: int
) -> Iterator[Batch]:
    slots = [transport.slot() for _ in range(ahead)]
    reading: deque[Future[Batch]] = deque()
    sent: deque[Sent] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="prefetch", initializer=transport.start_thread)
    begun = 0
    try:
        for number in range(len(order)):
            # Batch k is read into slot k mod `ahead`, once the batch that was in it before has been sent.
            while begun < len(order) and begun < number + len(sent) + ahead:
                reading.append(pool.submit(slots[begun % ahead].read, batches, order[begun]))
                begun += 1
            if not sent:
                sent.append(transport.send(reading.popleft().result(), slots[number % ahead]))
            # What is read already sets out while this batch is computed on; what failed waits for its turn.
            if reading and reading[0].done() and reading[0].exception() is None:
                sent.append(transport.send(reading.popleft().result(), slots[(number + 1) % ahead]))
            yield transport.receive(sent.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Sent(NamedTuple):
    """A batch under way."""

    batch: Batch
    arrived: torch.cuda.Event | None  # None where it never left


class Slot:
    """Memory for the image features of one batch, kept for the next one that comes here."""

    def __init__(self, *, pinned: bool, kept: bool = True) -> None:
        self.pinned, self.kept = pinned, kept
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.left: torch.cuda.Event | None = None  # when the last batch in here has reached the device

    def place(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The first bytes of the memory as an array."""
        size = prod(shape) * dtype.itemsize
        if len(self.memory) < size:
            self.memory = torch.empty(size, dtype=torch.uint8, pin_memory=self.pinned)
        return self.memory[:size].numpy().view(dtype).reshape(shape)

    def read(self, batches: Batches, rows: np.ndarray) -> Batch:
        if self.left is not None:
            self.left.synchronize()
        batch = batches.take(rows, place=self.place if self.kept else None)
        return batch.pin_memory() if self.pinned else batch


class Transport:
    """Brings batches from slots to a device, on a stream of its own where the device has streams."""

    def __init__(self, batches: Batches, device: torch.device, *, keep_memory: bool) -> None:
        self.device, self.keep_memory = device, keep_memory
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        scale = getattr(batches.pairs.image_features, "scale", None)
        self.scale = None if scale is None else torch.from_numpy(np.asarray(scale)).to(device)

    def slot(self) -> Slot:
        return Slot(pinned=self.stream is not None, kept=self.keep_memory)

    def start_thread(self) -> None:
        """A new thread would turn to the first device of the machine."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def send(self, batch: Batch, slot: Slot) -> Sent:
        """Set the batch on its way; it can be used when `receive` has given it."""
        with self._on_stream():
            moved = batch.to(self.device, non_blocking=True)
            moved = replace(moved, images=self._finished(moved.images))
            if self.stream is not None:
                slot.left = torch.cuda.Event(blocking=True)  # a thread that waits for it sleeps
                slot.left.record(self.stream)
        return Sent(moved, slot.left)

    def receive(self, sent: Sent) -> Batch:
        """What is computed from now on waits for the batch, and its memory for what is computed."""
        if sent.arrived is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(sent.arrived)
            for field in fields(sent.batch):
                value = getattr(sent.batch, field.name)
                if isinstance(value, Tensor):
                    value.record_stream(current)
        return sent.batch

    def _finished(self, images: Tensor | None) -> Tensor | None:
        """As `FeatureSource.rows` would have given them: float32 and scaled, in memory of their own."""
        if images is None or not self.keep_memory:
            return images
        raw = images.dtype != torch.float32
        images = images.to(torch.float32, copy=self.stream is None)
        return images * self.scale if raw and self.scale is not None else images

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
