"""Operations that backbones spend their time on. One file an op: its formula, a plain PyTorch reference, and dispatch.

Backends: Triton kernels in `sremkit.ops.triton`, imported when the first one runs, and CPU versions in
`sremkit.ops.cpu`. One switch, `use(...)` or initially SREMKIT_KERNELS, chooses between kernels and plain PyTorch:

- "auto": Triton for CUDA tensors if it is installed, else plain PyTorch;
- "plain": plain PyTorch everywhere;
- "triton": Triton everywhere. CPU tensors go through Triton's interpreter, slowly, for tests; it has to be
  enabled before Python starts, by TRITON_INTERPRET=1 in the environment.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Literal, get_args

import torch

Backend = Literal["auto", "plain", "triton"]

# A caption's nodes, an image's regions and a similarity vector are a block each, which has to fit into the
# registers and the shared memory of a multiprocessor. Larger inputs take the plain path.
_MAX_NODES = {2: 128, 4: 64}  # by the bytes of an element
_MAX_REGIONS = 64
_MAX_SIMILARITY = 256


def _checked(name: str) -> Backend:
    if name not in get_args(Backend):
        raise ValueError(f"the kernels' backend must be 'auto', 'plain' or 'triton', got '{name}'")
    return name  # type: ignore[return-value]


backend: Backend = _checked(os.environ.get("SREMKIT_KERNELS", "auto"))


class use:  # noqa: N801 (reads as a verb: `with use("plain")`)
    """Set the backend permanently; as a context manager, restore the previous one at the end."""

    def __init__(self, name: str) -> None:
        global backend
        self._before = backend
        backend = _checked(name)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        global backend
        backend = self._before


def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def compute_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of matrix products: autocast's where it is enabled, else that of `x`."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def uses_triton(x: torch.Tensor) -> bool:
    """Whether tensors like `x` go through the kernels; never inside torch.compile, which fuses the plain path."""
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
        raise ValueError("the kernels' backend is 'triton', which computes in float32 at most; use 'plain' for float64")
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            "the kernels' backend is 'triton', and the tensors are on the CPU; move the model to a CUDA device, "
            "use 'auto' or 'plain', or set TRITON_INTERPRET=1 before Python starts to run the interpreter"
        )
    return True


def kernels_support(dtype: torch.dtype, *, num_regions: int, num_nodes: int, sim_dim: int = 1) -> bool:
    """Whether the kernels' blocks hold so many regions, nodes of a caption and similarity components.

    In attention between two modalities the regions are the keys and the nodes are the queries of one item.
    """
    max_nodes = _MAX_NODES.get(dtype.itemsize, 0)
    return num_regions <= _MAX_REGIONS and num_nodes <= max_nodes and sim_dim <= _MAX_SIMILARITY
