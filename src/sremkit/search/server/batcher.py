"""Micro-batching: requests that arrive while the model is busy are computed together.

One thread works. Whenever it is free it takes all waiting items, up to `max_batch`; none waits for a batch to fill.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFullError(Exception):
    """Too many items wait."""


class _Waiting(NamedTuple):
    item: Any
    future: Future


class MicroBatcher(Generic[Item, Result]):
    """Calls a function on batches of items that other threads submit.

    Args:
        function: from a sequence of items to their results, in the same order.
        max_batch: items of a call, at most.
        max_waiting: items that may wait; more are refused.
        on_batch: called with the size of each batch.
        on_start: called in the thread before anything else, such as to set its number of OpenMP threads.
    """

    def __init__(
        self,
        function: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        max_batch: int = 32,
        max_waiting: int = 256,
        on_batch: Callable[[int], object] = lambda size: None,
        on_start: Callable[[], object] = lambda: None,
    ) -> None:
        self._function = function
        self._max_batch = max_batch
        self._on_batch = on_batch
        self._on_start = on_start
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue(max_waiting)
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="micro-batcher", daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> Future[Result]:
        """Queue an item; `QueueFullError` if too many wait, or after `close`."""
        future: Future[Result] = Future()
        with self._lock:
            if self._closed:
                raise QueueFullError
            try:
                self._waiting.put_nowait(_Waiting(item, future))
            except queue.Full:
                raise QueueFullError from None
        return future

    @property
    def num_waiting(self) -> int:
        return self._waiting.qsize()

    def close(self) -> None:
        """Compute what waits, then stop."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        self._on_start()
        while (first := self._waiting.get()) is not None:
            batch, is_last = [first], False
            while len(batch) < self._max_batch and not is_last:
                try:
                    entry = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if entry is None:
                    is_last = True
                else:
                    batch.append(entry)
            self._compute([entry for entry in batch if entry.future.set_running_or_notify_cancel()])
            if is_last:
                return

    def _compute(self, batch: list[_Waiting]) -> None:
        """Compute a batch; if that fails, each item by itself, so that one bad item fails alone."""
        if not batch:
            return
        self._on_batch(len(batch))
        try:
            results = self._function([entry.item for entry in batch])
        except Exception as problem:
            if len(batch) == 1:
                batch[0].future.set_exception(problem)
            else:
                for entry in batch:
                    self._compute([entry])
            return
        for entry, result in zip(batch, results, strict=True):
            entry.future.set_result(result)
