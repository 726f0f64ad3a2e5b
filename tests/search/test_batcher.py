"""Items that wait together are computed together; one bad item fails alone; closing loses none."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from sremkit.search.server.batcher import MicroBatcher, QueueFullError


class Gate:
    """A function that waits until it is opened, and remembers its batches."""

    def __init__(self) -> None:
        self.opened, self.entered = threading.Event(), threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        self.entered.set()
        assert self.opened.wait(10)
        if 13 in items:
            raise ValueError("13")
        return [item * item for item in items]


def test_items_that_arrive_during_a_batch_are_the_next_batch() -> None:
    gate = Gate()
    batcher = MicroBatcher(gate, max_batch=3)
    first = batcher.submit(1)
    assert gate.entered.wait(10)
    others = [batcher.submit(item) for item in (2, 3, 4, 5)]
    gate.opened.set()
    assert [future.result(10) for future in (first, *others)] == [1, 4, 9, 16, 25]
    batcher.close()
    assert gate.batches == [[1], [2, 3, 4], [5]]


def test_one_bad_item_fails_alone() -> None:
    gate = Gate()
    batcher = MicroBatcher(gate)
    first = batcher.submit(1)
    assert gate.entered.wait(10)
    futures = [batcher.submit(item) for item in (12, 13, 14)]
    gate.opened.set()
    assert first.result(10) == 1
    assert [futures[0].result(10), futures[2].result(10)] == [144, 196]
    with pytest.raises(ValueError, match="13"):
        futures[1].result(10)
    batcher.close()


def test_too_many_items_are_refused_and_closing_finishes_those_that_wait() -> None:
    gate = Gate()
    batcher = MicroBatcher(gate, max_waiting=2)
    first = batcher.submit(1)
    assert gate.entered.wait(10)
    waiting = [batcher.submit(2), batcher.submit(3)]
    with pytest.raises(QueueFullError):
        batcher.submit(4)
    gate.opened.set()
    batcher.close()
    assert [future.result(0) for future in (first, *waiting)] == [1, 4, 9]
    with pytest.raises(QueueFullError):
        batcher.submit(5)
