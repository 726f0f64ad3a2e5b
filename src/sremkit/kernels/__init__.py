"""Triton kernels for what cross-attention backbones spend their time on, each beside its plain PyTorch twin.

One switch says which of the two is used:

- "auto": Triton where the numbers lie on a CUDA device and Triton is installed, else plain PyTorch;
- "plain": plain PyTorch everywhere;
- "triton": Triton everywhere. Numbers of a CPU go through Triton's interpreter, slowly, for tests; it
  has to be chosen before Python starts, by TRITON_INTERPRET=1 in the environment.

`use("plain")` sets it for good, or for a block as `with use("plain"): ...`. The environment variable
SREMKIT_KERNELS sets what it starts with.

The kernels work on *packed* captions: the words of all captions one after the other, without padding, as
`sremkit.kernels.packing` lays them out. `sremkit.bench.operations` counts operations and bytes.
"""

from __future__ import annotations

import importlib.util
import os
from types import TracebackType
from typing import Literal, get_args

import torch

Backend = Literal["auto", "plain", "triton"]

# A caption's nodes, an image's regions and a similarity vector are a block each, which has to fit into the
# registers and the shared memory of a core. What is larger goes the plain way.
_MOST_NODES = {2: 128, 4: 64}  # by the bytes of a number
_MOST_REGIONS = 64
_MOST_SIMILARITY = 256


def _checked(name: str) -> Backend:
    if name not in get_args(Backend):
        raise ValueError(f"the kernels' backend must be 'auto', 'plain' or 'triton', got '{name}'")
    return name  # type: ignore[return-value]


backend: Backend = _checked(os.environ.get("SREMKIT_KERNELS", "auto"))


class use:  # noqa: N801 (reads as a verb: `with use("plain")`)
    """Set the backend now; as a context manager, put the former one back at the end."""

    def __init__(self, name: str) -> None:
        global backend
        self._before = backend
        backend = _checked(name)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global backend
        backend = self._before


def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def compute_dtype(x: torch.Tensor) -> torch.dtype:
    """What products are computed in: autocast's number format where it is on, else that of `x`."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def uses_triton(x: torch.Tensor) -> bool:
    """Whether numbers like `x` are to go through the kernels.

    Not inside of torch.compile, which makes kernels of the plain way itself.
    """
    if torch.compiler.is_compiling():
        return False
    if backend == "plain" or (backend == "auto" and not x.is_cuda):
        return False
    if backend == "auto":
        return has_triton() and compute_dtype(x) != torch.float64
    if not has_triton():
        raise ValueError(
            "the kernels' backend is 'triton', which is not installed; "
            "install it with: pip install triton, or use 'auto' or 'plain'"
        )
    if compute_dtype(x) == torch.float64:
        raise ValueError(
            "the kernels' backend is 'triton', which computes in float32 at most; use 'plain' for float64"
        )
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            "the kernels' backend is 'triton', and the numbers lie on the CPU; move the model to a CUDA device, "
            "use 'auto' or 'plain', or set TRITON_INTERPRET=1 before Python starts to run the interpreter"
        )
    return True


def fits(dtype: torch.dtype, *, num_regions: int, num_nodes: int, sim_dim: int) -> bool:
    """Whether the kernels' blocks hold this many regions, nodes of a caption and similarity numbers."""
    most_nodes = _MOST_NODES.get(dtype.itemsize, 0)
    return num_regions <= _MOST_REGIONS and num_nodes <= most_nodes and sim_dim <= _MOST_SIMILARITY
