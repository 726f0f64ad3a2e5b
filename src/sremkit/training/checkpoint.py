"""Checkpoints: safetensors plus JSON, written so that a crash at any moment leaves a valid one behind.

A checkpoint is a folder. It is written under a temporary name, forced to disk and then renamed, so a
folder with a checkpoint's name is complete. Loading one runs no code.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sremkit.errors import UserError

TENSORS = "tensors.safetensors"
FACTS = "facts.json"


class CheckpointError(UserError):
    """A checkpoint that is missing or unreadable; the message says which and what else there is."""


def write_checkpoint(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write one checkpoint; `folder` appears only when all of it is on disk."""
    partial = folder.with_name(f".partial-{folder.name}-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, partial / TENSORS)
        facts = {**facts, "tensor_bytes": (partial / TENSORS).stat().st_size}
        (partial / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        for file in (partial / TENSORS, partial / FACTS, partial):
            force_to_disk(file)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
        force_to_disk(folder.parent)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read one checkpoint: its tensors (on the CPU) and its facts."""
    if not is_valid(folder):
        raise CheckpointError(f"{folder} is not a complete checkpoint; choose another one beside it")
    return load_file(folder / TENSORS), read_facts(folder)


def read_facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / FACTS).read_text(encoding="utf-8"))


def is_valid(folder: Path) -> bool:
    """Whether both files are there and as long as they were when written."""
    try:
        return (folder / TENSORS).stat().st_size == read_facts(folder)["tensor_bytes"]
    except (OSError, ValueError, KeyError):
        return False


def force_to_disk(path: Path) -> None:
    """Wait until a file, or the entries of a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str) -> None:
    """Replace a small text file in one step: readers see the old one or the new one, never a half."""
    partial = path.with_name(f".partial-{path.name}-{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    force_to_disk(partial)
    partial.replace(path)


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": t for name, t in tensors.items()}


def without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{prefix}/"): t for name, t in tensors.items() if name.startswith(f"{prefix}/")
    }


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an optimiser remembers, as flat named tensors."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}/{key}": torch.as_tensor(value)
        for index, entry in state.items()
        for key, value in entry.items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give an optimiser its memory back; learning rates and the like stay as they are set."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, t in tensors.items():
        index, key = name.split("/")
        state.setdefault(int(index), {})[key] = t.clone()  # an optimiser changes its memory in place
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
