"""Independent parts of one computation in forked worker processes of one thread each.

Short steps with several threads each are slow next to other work: all threads wait for the one that has lost its core.
Processes of one thread wait for nothing, and give the same numbers whether there are several of them or one.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from sremkit.data.worker_processes import init_worker, usable_cores

Result = TypeVar("Result")
_work: Callable[[int], Any]  # of a worker process


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


def default_workers() -> int:
    """One for each core that this process may use."""
    return usable_cores()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread of PyTorch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _start(work: Callable[[int], Any]) -> None:
    global _work
    init_worker(0)
    torch.set_num_threads(1)
    _work = work


def _call(number: int) -> Any:
    return _work(number)
