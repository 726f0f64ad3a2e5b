"""Regional compilation: torch.compile for the elementwise parts of a model between its Triton kernels.

Kernels and recurrent networks stay eager. Only training runs compiled: evaluation has other sizes, each of
which would have to be compiled again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sremkit import ops


class CompiledParts(nn.Module):
    """A module some of whose methods can be compiled for training.

    Those methods are called as `self.part("method")(...)`.
    """

    #: Names of the methods.
    PARTS: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self._compiled: dict[str, Callable[..., Any]] = {}

    def compile_parts(self) -> None:
        """From now on training runs the parts compiled."""
        # Functions of the class, which are compiled once for all instances of the same sizes.
        self._compiled = {name: torch.compile(getattr(type(self), name)) for name in self.PARTS}

    def run_eagerly(self) -> None:
        """From now on training runs the parts eagerly."""
        self._compiled = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without compiled functions, which cannot be pickled; a copy runs eagerly until it is compiled itself."""
        return {**self.__dict__, "_compiled": {}}

    def part(self, name: str) -> Callable[..., Any]:
        """The method, compiled in training after `compile_parts`."""
        compiled = self._compiled.get(name) if self.training else None
        if compiled is None:
            return getattr(self, name)
        return lambda *args: compiled(self, *args)


def parts_around_kernels(model: nn.Module) -> list[CompiledParts]:
    """The modules that can be compiled in parts."""
    return [module for module in model.modules() if isinstance(module, CompiledParts)]


def compile_around_kernels(model: nn.Module) -> bool:
    """Compile the parts around the kernels, if the model uses kernels; whether it does."""
    around = parts_around_kernels(model)
    if not around or not ops.uses_triton(next(model.parameters())):
        return False
    for module in around:
        module.compile_parts()
    return True


def run_eagerly(model: nn.Module) -> None:
    """Undo `compile_around_kernels`."""
    for module in parts_around_kernels(model):
        module.run_eagerly()


class CompileClock:
    """Counts the seconds that PyTorch compiles; 0 where this version of PyTorch does not report it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def _start(self, *_: Any) -> None:
        self._started = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self.seconds += time.perf_counter() - self._started

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, compilations are counted."""
        try:
            from torch._dynamo.callback import callback_handler as callbacks

            callbacks.register_start_callback(self._start)
            callbacks.register_end_callback(self._end)
        except (ImportError, AttributeError):
            yield
            return
        try:
            yield
        finally:
            callbacks.remove_start_callback(self._start)
            callbacks.remove_end_callback(self._end)


def use_compile_cache() -> Path | None:
    """Let compiled code be kept below the user's cache folder, for the next run; returns the folder.

    PyTorch's default is a folder for temporary files, which is lost with them. Its files are executed when they are
    read again, so the folder must belong to the user, and no other may write into it. None where that is not so,
    on Windows, and where TORCHINDUCTOR_CACHE_DIR names another folder.
    """
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ or not hasattr(os, "getuid"):
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "sremkit" / "torchinductor"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError:
        return None
    if facts.st_uid != os.getuid() or facts.st_mode & 0o022 or not os.access(folder, os.W_OK):
        return None
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    return folder
