"""Compiles what stands around the kernels: many small operations that a compiler makes few of.

The kernels themselves stay as they are, and so does the recurrence. Only training runs compiled: evaluation meets
other sizes, each of which would have to be compiled anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sremkit import kernels


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
        # Functions of the class, which are compiled once for all objects of like sizes.
        self._compiled = {name: torch.compile(getattr(type(self), name)) for name in self.PARTS}

    def __getstate__(self) -> dict[str, Any]:
        """Without what was compiled, which no file can hold; a copy runs as it is until it is compiled itself."""
        return {**self.__dict__, "_compiled": {}}

    def part(self, name: str) -> Callable[..., Any]:
        """The method, compiled if that was asked for and this is training."""
        compiled = self._compiled.get(name) if self.training else None
        if compiled is None:
            return getattr(self, name)
        return lambda *args: compiled(self, *args)


def parts_around_kernels(model: nn.Module) -> list[CompiledParts]:
    """The modules that can be compiled in parts."""
    return [module for module in model.modules() if isinstance(module, CompiledParts)]


def compile_around_kernels(model: nn.Module) -> bool:
    """Compile the parts around the kernels, if the model goes through any; whether it does."""
    around = parts_around_kernels(model)
    if not around or not kernels.uses_triton(next(model.parameters())):
        return False
    for module in around:
        module.compile_parts()
    return True
