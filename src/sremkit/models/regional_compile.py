"""Regional compilation: torch.compile for the elementwise parts of a model between its Triton kernels.

Kernels and recurrent networks stay eager. Only training runs compiled: evaluation has other sizes, each of
which would have to be compiled again.
"""

from __future__ import annotations

from collections.abc import Callable
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
