"""Checkpoints: safetensors plus JSON, written so that a crash at any moment leaves a valid one behind.

A checkpoint is a folder. It is written under a temporary name, forced to disk and then renamed, so a
folder with a checkpoint's name is complete. Loading one runs no code. Checksums of both files tell a damaged checkpoint
from one of another version.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sremkit.config.aliases import rename_tensors
from sremkit.errors import DataError, UserError
from sremkit.io import PARTIAL, check_version, digest, file_checksum, first_line, fsync, read_json
from sremkit.methods.common.state_dicts import prefixed as prefixed
from sremkit.methods.common.state_dicts import without_prefix as without_prefix

VERSION = 2  # of the facts; those of 0.1 have no version and no checksums
TENSORS = "tensors.safetensors"
FACTS = "facts.json"


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or of another model; the message names it and what to do."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint that is not what was written, and why."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder} is not a complete checkpoint ({reason}); choose another one next to it")
        self.folder = folder
        self.reason = reason


def write_checkpoint(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write one checkpoint; `folder` appears only when all of it is on disk."""
    partial = folder.with_name(f"{PARTIAL}{folder.name}-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _save_tensors({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, partial / TENSORS)
        facts = {**facts, "version": VERSION, "tensor_bytes": (partial / TENSORS).stat().st_size}
        facts["checksums"] = {"tensors": file_checksum(partial / TENSORS), "facts": _facts_checksum(facts)}
        (partial / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        shutil.copymode(partial / FACTS, partial / TENSORS)  # by the umask; safetensors lets only the user read it
        for file in (partial / TENSORS, partial / FACTS, partial):
            fsync(file)
        if folder.exists():
            remove_checkpoint(folder)
        partial.rename(folder)
        fsync(folder.parent)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """`save_file`, which reports a full disk by an error of its own, with the error of the system."""
    try:
        save_file(tensors, path)
    except SafetensorError as cause:
        code = re.search(r"os error (\d+)", str(cause))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from cause


def remove_checkpoint(folder: Path) -> None:
    """Remove one checkpoint; it loses its name first, so a crash leaves no part of it under that name."""
    partial = folder.with_name(f"{PARTIAL}removed-{folder.name}-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    folder.rename(partial)
    shutil.rmtree(partial)


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read one checkpoint: its tensors (on the CPU) and its facts. Raises `DamagedCheckpointError` if it is damaged."""
    facts = read_facts(folder)
    file = folder / TENSORS
    if not file.is_file():
        raise DamagedCheckpointError(folder, f"{TENSORS} is missing")
    try:
        if file.stat().st_size != facts["tensor_bytes"]:
            raise DamagedCheckpointError(
                folder, f"{TENSORS} has {file.stat().st_size:,} bytes instead of {facts['tensor_bytes']}"
            )
        if "checksums" in facts and file_checksum(file) != facts["checksums"]["tensors"]:
            raise DamagedCheckpointError(folder, f"the checksum of {TENSORS} differs from the one in {FACTS}")
        return rename_tensors(load_file(file)), facts
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as cause:
        raise DamagedCheckpointError(folder, f"{TENSORS} or {FACTS}: {first_line(cause)}") from cause


def read_facts(folder: Path) -> dict[str, Any]:
    """The facts of a checkpoint. Raises `DamagedCheckpointError` if they are damaged."""
    try:
        facts = read_json(folder / FACTS)
    except DataError as cause:
        reason = "is not readable JSON" if (folder / FACTS).is_file() else "is missing"
        raise DamagedCheckpointError(folder, f"{FACTS} {reason}") from cause
    if not isinstance(facts, dict):
        raise DamagedCheckpointError(folder, f"{FACTS} holds no table")
    check_version(facts.get("version"), newest=VERSION, where=folder)
    checksums = facts.get("checksums")
    if checksums is not None and not (
        isinstance(checksums, dict) and checksums.get("facts") == _facts_checksum(facts) and "tensors" in checksums
    ):
        raise DamagedCheckpointError(folder, f"{FACTS} was changed after it was written: its checksum differs")
    return facts


@contextmanager
def of_another_model(place: Path) -> Iterator[None]:
    """Inside, the content of a checkpoint is loaded: if it does not fit, it is of another model or version."""
    try:
        yield
    except (RuntimeError, KeyError, TypeError, ValueError, AttributeError, IndexError) as cause:
        raise CheckpointError(
            f"the checkpoint in {place} does not fit this run ({first_line(cause)}): it is of another model, other "
            "data or another version; copy the run again, or train in another folder"
        ) from cause


def is_valid(folder: Path) -> bool:
    """Whether a checkpoint is complete and undamaged; all of it is read."""
    try:
        read_checkpoint(folder)
    except DamagedCheckpointError:
        return False
    return True


def _facts_checksum(facts: dict[str, Any]) -> str:
    as_read = json.loads(json.dumps(facts))
    return digest({key: value for key, value in as_read.items() if key != "checksums"}, length=64)
