"""States as flat named tensors, as checkpoints hold them: prefixes for their parts, and the memory of an optimizer."""

from __future__ import annotations

import torch
from torch import Tensor


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under names that begin with "prefix/"."""
    return {f"{prefix}/{name}": t for name, t in tensors.items()}


def without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of some tensors those whose names begin with "prefix/", without it."""
    return {name.removeprefix(f"{prefix}/"): t for name, t in tensors.items() if name.startswith(f"{prefix}/")}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The memory of an optimizer, "number of the parameter/name"."""
    state = optimizer.state_dict()["state"]
    return {f"{index}/{key}": torch.as_tensor(value) for index, entry in state.items() for key, value in entry.items()}


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give an optimizer its memory back; learning rates and the like stay as they are set."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, t in tensors.items():
        index, key = name.split("/")
        state.setdefault(int(index), {})[key] = t.clone()  # an optimizer changes its memory in place
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
