"""The folder a run leaves: configuration, record, metrics, checkpoints, statistics, report."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sremkit.errors import UserError
from sremkit.training.checkpoint import (
    CheckpointError,
    is_valid,
    read_checkpoint,
    replace_file,
    write_checkpoint,
)
from sremkit.version import __version__

KEPT_CHECKPOINTS = 2


class RunFolder:
    """Paths and files of one run. Only one process may write."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.record = self.path / "record.json"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.statistics = self.path / "statistics"
        self.events = self.path / "tensorboard"
        self.report = self.path / "report.html"

    @classmethod
    def create(cls, path: str | Path, *, config: str) -> RunFolder:
        """Start a new run; a folder that holds one already is left alone."""
        folder = cls(path)
        folder.refuse_existing()
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        replace_file(folder.config, config)
        return folder

    def refuse_existing(self) -> None:
        """Say so if there is a run in this folder, before any work is done for another one."""
        if self.config.exists():
            raise UserError(
                f"{self.path} holds a run already; go on with `srem train --resume {self.path}`, "
                "or name another folder with --out"
            )

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open an existing run."""
        folder = cls(path)
        if not folder.config.exists():
            raise UserError(f"{folder.path} holds no run (there is no config.toml in it)")
        return folder

    def is_finished(self) -> bool:
        """Whether the run came to its end: its report is written last."""
        return self.report.exists()

    def forget_if_never_begun(self) -> None:
        """A run that failed before its first checkpoint leaves nothing that could be gone on with."""
        if not self._steps() and not self.read_metrics():
            self.config.unlink(missing_ok=True)

    def save_step(self, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write the state after `step` updates and drop all but the newest checkpoints."""
        write_checkpoint(self.checkpoints / f"step-{step:08d}", tensors, facts)
        for old in self._steps()[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old)
        for leftover in self.checkpoints.glob(".partial-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def latest_step(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest complete checkpoint, or None at the very beginning."""
        for folder in reversed(self._steps()):
            if is_valid(folder):
                return read_checkpoint(folder)
        return None

    def save_best(self, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write the best model so far; the one before it stays until the new one is complete."""
        new = self.checkpoints / f"best-{step:08d}"
        write_checkpoint(new, tensors, facts)
        for old in self.checkpoints.glob("best-*"):
            if old != new:
                shutil.rmtree(old)

    def best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The model with the best validation result."""
        for folder in sorted(self.checkpoints.glob("best-*"), reverse=True):
            if is_valid(folder):
                return read_checkpoint(folder)
        raise CheckpointError(
            f"{self.path} holds no model yet; train it with `srem train --resume {self.path}`"
        )

    def append_metrics(self, row: dict[str, Any]) -> None:
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        return list(self._rows())

    def forget_metrics_from(self, epoch: int) -> None:
        """Drop rows that a run resumed in this epoch is going to write again, and a half-written last line."""
        kept = [row for row in self._rows() if row["epoch"] < epoch]
        replace_file(self.metrics, "".join(json.dumps(row) + "\n" for row in kept))

    def write_record(self, record: dict[str, Any]) -> None:
        replace_file(self.record, json.dumps(record, indent=2) + "\n")

    def read_record(self) -> dict[str, Any]:
        return json.loads(self.record.read_text(encoding="utf-8")) if self.record.exists() else {}

    def _rows(self) -> Iterator[dict[str, Any]]:
        if not self.metrics.exists():
            return
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                return  # the process ended in the middle of this line

    def _steps(self) -> list[Path]:
        return sorted(self.checkpoints.glob("step-*"))


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions and machine, for the record."""
    return {
        "sremkit": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "command": " ".join(sys.argv),
    }
