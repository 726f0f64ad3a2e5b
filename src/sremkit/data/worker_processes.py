"""Worker processes: how many a machine can use, and how one behaves."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing import parent_process

PARENT_POLL_SECONDS = 1.0


def usable_cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def init_worker(worker: int = 0) -> None:
    """Leave Ctrl-C to the parent, and exit when the parent is gone: a worker blocked on its queue would never end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    launched_by = os.getppid()  # the parent, or its fork server, which ends with it
    parent = parent_process()
    assert parent is not None
    if launched_by == 1 and parent.pid != 1:
        os._exit(1)  # the parent is gone already
    threading.Thread(target=_exit_without, args=(launched_by,), daemon=True).start()


def _exit_without(launched_by: int) -> None:
    while os.getppid() == launched_by:
        time.sleep(PARENT_POLL_SECONDS)
    os._exit(1)
