"""Worker processes of one thread each: how many a machine can use, how one behaves, and work divided among them.

Short steps with several threads each are slow next to other work: all threads wait for the one that has lost its core.
Processes of one thread wait for nothing, and give the same numbers whether there are several of them or one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

PARENT_POLL_SECONDS = 1.0

Result = TypeVar("Result")
_work: Callable[[int], Any]  # of a worker process


def usable_cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread of PyTorch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run_parallel(work: Callable[[int], Result], numbers: Sequence[int], workers: int) -> Iterator[tuple[int, Result]]:
    """Call `work` with each number; yields number and result as they are finished.

    Results should be small and hold no tensors: PyTorch sends those through shared memory, of which many containers
    have little.

    With fewer than two workers, where processes cannot be forked, and inside of a worker of another pool, this process
    does the work in the order of the numbers.
    """
    workers = min(workers, len(numbers))
    can_fork = "fork" in multiprocessing.get_all_start_methods() and not multiprocessing.current_process().daemon
    if workers < 2 or not can_fork:
        with one_thread():
            for number in numbers:
                yield number, work(number)
        return
    # Forked, so that the arguments of the work are shared and not copied.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _start, (work,))
    try:
        number_of = {pool.submit(_call, number): number for number in numbers}
        for done in as_completed(number_of):
            yield number_of[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def init_worker(worker: int = 0) -> None:
    """Leave Ctrl-C to the parent, and exit when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()


def exit_with_parent() -> None:
    """Exit when the parent is gone: a worker blocked on its queue would never end."""
    launched_by = os.getppid()  # the parent, or its fork server, which does not end before its processes
    parent = multiprocessing.parent_process()
    assert parent is not None
    if launched_by == 1 and parent.pid != 1:
        os._exit(1)  # the parent is gone already
    threading.Thread(target=_exit_without, args=(launched_by, parent), daemon=True).start()


def _exit_without(launched_by: int, parent: BaseProcess) -> None:
    while os.getppid() == launched_by and not wait([parent.sentinel], PARENT_POLL_SECONDS):
        pass
    os._exit(1)


def _start(work: Callable[[int], Any]) -> None:
    global _work
    init_worker(0)
    torch.set_num_threads(1)
    _work = work


def _call(number: int) -> Any:
    return _work(number)
