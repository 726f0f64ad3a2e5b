"""Processes of `srem` that can be killed, stopped and limited, forked from one that has imported everything already."""

from __future__ import annotations

import fcntl
import importlib
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context, set_start_method
from multiprocessing.process import BaseProcess
from pathlib import Path

LOADED = ("pyarrow.parquet", "sremkit.audit.sharded.run", "sremkit.experiment", "sremkit.reports.page",
          "matplotlib.backends.backend_agg", "torch.utils.tensorboard", "accelerate", __name__)  # fmt: skip
Limits = Mapping[int, int]  # such as {resource.RLIMIT_NOFILE: 64}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    output: str
    seconds: float

    @property
    def is_sentence(self) -> bool:
        """Whether it was refused with a sentence and no traceback."""
        return self.code == 2 and "srem: " in self.output and "Traceback" not in self.output


class Running:
    """A command that runs in `folder`; its output goes to a file."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        *,
        setup: str = "",
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload([*LOADED, *([setup] if setup else [])])
        self.log = folder.parent / f"{folder.name}-{time.monotonic_ns()}.log"
        self.started = time.monotonic()
        given = (list(arguments), str(folder), str(self.log), setup, dict(limits or {}), dict(environment or {}))
        self.process: BaseProcess = context.Process(target=run_srem, args=given)
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def is_running(self) -> bool:
        return self.process.is_alive()

    def send(self, number: int, *, to_group: bool = False) -> bool:
        """Send a signal to the process, or also to its workers; returns whether it was still running."""
        if not self.is_running():
            return False
        try:
            (os.killpg if to_group else os.kill)(self.pid, number)
        except ProcessLookupError:  # it has ended, or has no group of its own yet
            return False
        return True

    def wait_for(self, is_there: Callable[[], bool], *, seconds: float = 60) -> bool:
        """Wait until something is there; returns whether it came while the command was running."""
        end = time.monotonic() + seconds
        while self.is_running() and time.monotonic() < end:
            if is_there():
                return True
            time.sleep(0.001)
        return False

    def end(self, *, seconds: float = 300) -> Ended:
        """Wait for its end; one that takes too long is killed and has the code -9."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.send(signal.SIGKILL, to_group=True)
            self.process.join()
        took = time.monotonic() - self.started
        output = self.log.read_text(errors="replace") if self.log.exists() else ""
        self.log.unlink(missing_ok=True)
        assert self.process.exitcode is not None
        return Ended(self.process.exitcode, output, took)


def run_srem(
    arguments: list[str], folder: str, log: str, setup: str, limits: dict[int, int], environment: dict[str, str]
) -> None:
    """What such a process does: `srem` as from a shell, with its output in a file, and limits of the system.

    Args:
        setup: a module that is imported first, such as one that replaces encoders.
    """
    os.setsid()
    set_start_method("fork", force=True)  # as from a shell
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.update(environment)
    if setup:
        importlib.import_module(setup)
    for number, limit in limits.items():
        resource.setrlimit(number, (limit, limit))
    from sremkit.cli.main import main

    code = main(arguments)
    sys.stdout.flush()
    sys.exit(code)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file; one that has only opened it does not."""
    try:
        with path.open("rb") as file:
            asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind: int = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, asked))[0]
            return kind != fcntl.F_UNLCK
    except FileNotFoundError:
        return False


def run(arguments: Sequence[str], folder: Path, *, setup: str = "", limits: Limits | None = None) -> Ended:
    """Run a command to its end."""
    return Running(arguments, folder, setup=setup, limits=limits).end()


def children_of(pid: int) -> list[int]:
    """The processes below this one, the nearest first."""
    found = [pid]
    for parent in found:
        for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in tasks.read_text().split()]
            except OSError:  # it has ended
                continue
    return found[1:]
