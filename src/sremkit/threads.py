"""The number of CPU threads, next to other busy processes too.

By default OpenMP threads that wait for each other spin. If another process has one of the cores, the spinning threads
keep the last one from running, at the end of each of thousands of operations: a training step takes 10 to 40 times as
long. Threads that sleep while they wait do not have this problem. How they wait is decided when torch is loaded, so
`sleep_while_waiting` is called when sremkit is imported. Where torch was loaded before, `usable_threads` measures.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

MAX_RATIO = 1.5  # of the time of operations with all threads to that with one
_OPERATIONS = 40
_SIZE = 256  # large enough that an operation is divided among threads


def sleep_while_waiting() -> None:
    """Let OpenMP threads sleep while they wait, unless torch is loaded or the environment says how they wait."""
    if "torch" not in sys.modules and "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def are_sleeping() -> bool:
    """Whether OpenMP threads sleep while they wait."""
    return os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"


def usable_threads(most: int | None = None) -> int:
    """The number of threads that do not slow down each other at this moment: all, or one.

    Args:
        most: number of threads to choose from; by default torch's.
    """
    import torch

    most = torch.get_num_threads() if most is None else most
    if most == 1 or are_sleeping():
        return most
    before = torch.get_num_threads()
    try:
        return choose_threads(most, _seconds_of_operations)
    finally:
        torch.set_num_threads(before)


def choose_threads(most: int, seconds: Callable[[int], float]) -> int:
    """`most`, or one if operations with `most` threads are much slower than with one.

    Args:
        seconds: measures operations with this number of threads.
    """
    return most if seconds(most) <= MAX_RATIO * seconds(1) else 1


def _seconds_of_operations(threads: int) -> float:
    """Seconds of a few small operations with this number of threads, after one that starts the threads."""
    import torch

    torch.set_num_threads(threads)
    a = torch.ones(_SIZE, _SIZE)
    torch.tanh(a @ a)
    started = time.perf_counter()
    for _ in range(_OPERATIONS):
        torch.tanh(a @ a)
    return time.perf_counter() - started
