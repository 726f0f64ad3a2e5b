"""The folder a run leaves: configuration, record, metrics, checkpoints, statistics, report."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sremkit.config.recipes import Recipe, load_recipe
from sremkit.config.settings import SettingsError
from sremkit.errors import DataError, UserError, UserNotice
from sremkit.io import PARTIAL, atomic_write, check_version, read_bytes, read_json, refuse_links_out, sole_writer
from sremkit.training.checkpoint import (
    CheckpointError,
    DamagedCheckpointError,
    prefixed,
    read_checkpoint,
    remove_checkpoint,
    without_prefix,
    write_checkpoint,
)
from sremkit.version import __version__

VERSION = 2  # of the folder; 0.1 wrote none
KEPT_CHECKPOINTS = 2
LOCK = ".lock"  # of the process that trains


class DamagedWarning(UserNotice):
    """A part of a run's folder that is damaged and left out; the message says what is used instead."""


class RunFolder:
    """Paths and files of one run. Only one process may write."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.facts = self.path / "run.json"  # the version of the folder
        self.record = self.path / "record.json"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.statistics = self.path / "statistics"
        self.tracking = self.path / "tracking.json"  # the experiment trackers, and what they need to go on
        self.report = self.path / "report.html"

    @classmethod
    def create(cls, path: str | Path, *, config: str) -> RunFolder:
        """Start a new run; a folder that holds one already is left alone."""
        folder = cls(path)
        folder.refuse_existing()
        refuse_links_out(folder.path)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        folder._write_facts(config)
        atomic_write(folder.config, config)
        return folder

    def change_config(self, config: str) -> None:
        """Replace the configuration, of a run that is going to be extended."""
        self.report.unlink(missing_ok=True)  # which would say that the run is finished
        self._write_facts(config)
        atomic_write(self.config, config)

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
        folder._check_facts()
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process may train into this folder; a second one is refused."""
        self.path.mkdir(parents=True, exist_ok=True)
        refusal = f"another process trains in {self.path}; wait for it, or name another folder with --out"
        with sole_writer(self.path / LOCK, refusal):
            yield

    def prepare_resume(self) -> None:
        """Before a run is continued: what is written from here on is of this version, and stays in the folder."""
        refuse_links_out(self.path)
        if not self.facts.exists():  # of 0.1
            self._write_facts(self.config.read_text(encoding="utf-8"))

    def recipe(self) -> Recipe:
        """The resolved recipe of the run; settings may have the names of an earlier version."""
        try:
            return load_recipe(self.config, warn_renamed=False)
        except SettingsError as problem:
            raise UserError(f"{self.config}: {problem}; if it was damaged, copy the run again") from problem

    def is_finished(self) -> bool:
        """Whether the run came to its end: its report is written last."""
        return self.report.exists()

    def forget_if_never_begun(self) -> None:
        """A run that failed before its first checkpoint leaves nothing that could be gone on with."""
        if not self._steps() and not self.read_metrics():
            self.config.unlink(missing_ok=True)
            self.tracking.unlink(missing_ok=True)
            self.facts.unlink(missing_ok=True)

    def save_step(self, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write the state after `step` updates and drop all but the newest checkpoints."""
        write_checkpoint(self.checkpoints / f"step-{step:08d}", tensors, facts)
        for old in self._steps()[:-KEPT_CHECKPOINTS]:
            remove_checkpoint(old)
        for leftover in self.checkpoints.glob(f"{PARTIAL}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def latest_step(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest undamaged checkpoint, or None at the very beginning."""
        return self._newest("step-*")

    def save_best(self, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write the best model so far; the one before it stays until the new one is complete."""
        new = self.checkpoints / f"best-{step:08d}"
        write_checkpoint(new, tensors, facts)
        for old in self.checkpoints.glob("best-*"):
            if old != new:
                remove_checkpoint(old)

    def best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The model with the best validation result; if it is damaged, that of the newest checkpoint."""
        try:
            found = self._newest("best-*")
        except CheckpointError as problem:
            if (saved := self.latest_step()) is None:
                raise
            tensors, facts = saved
            used = "so the model of the last checkpoint is used instead of the best one"
            warnings.warn(f"{str(problem).split(';')[0]}, {used}", DamagedWarning, stacklevel=2)
            evaluated = without_prefix("ema", tensors) or without_prefix("model", tensors)
            return prefixed("model", evaluated), facts
        if found is None:
            raise CheckpointError(f"{self.path} holds no model yet; train it with `srem train --resume {self.path}`")
        return found

    def append_metrics(self, row: dict[str, Any]) -> None:
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows of the finished epochs.

        A half-written last line, where the process ended in it, is left out; so are damaged lines, with a warning.
        """
        rows, damaged = [], []
        *lines, last = read_bytes(self.metrics).split(b"\n") if self.metrics.exists() else [b""]
        for number, line in enumerate([*lines, *([last] if _is_row(last) else [])], start=1):
            if _is_row(line):
                rows.append(json.loads(line))
            elif line.strip():
                damaged.append(number)
        if damaged:
            numbers = ", ".join(map(str, damaged[:10]))
            warnings.warn(
                f"{self.metrics}: line {numbers} cannot be read and is left out; the other epochs are used",
                DamagedWarning,
                stacklevel=2,
            )
        return rows

    def forget_metrics_from(self, epoch: int) -> None:
        """Drop rows that a run resumed in this epoch is going to write again, and a half-written last line."""
        kept = [row for row in self.read_metrics() if row["epoch"] < epoch]
        atomic_write(self.metrics, "".join(json.dumps(row) + "\n" for row in kept))

    def write_record(self, record: dict[str, Any]) -> None:
        atomic_write(self.record, json.dumps(record, indent=2) + "\n")

    def read_record(self) -> dict[str, Any]:
        """The record; empty if there is none yet."""
        if not self.record.exists():
            return {}
        remedy = f"`srem train --resume {self.path}` writes it again"
        try:
            record = read_json(self.record)
        except DataError as cause:
            raise DataError(f"{cause}; {remedy}") from cause
        if not _is_record(record):
            raise DataError(f"{self.record} is damaged: its keys are not those of a record; {remedy}")
        return record

    def _write_facts(self, config: str) -> None:
        facts = {"version": VERSION, "sremkit": __version__, "config_lines": len(config.splitlines())}
        atomic_write(self.facts, json.dumps(facts) + "\n")

    def _check_facts(self) -> None:
        """Refuse a folder of a newer version, and one whose configuration was cut off: its defaults would be used."""
        if not self.facts.exists():  # of 0.1
            return
        facts = read_json(self.facts)
        if not isinstance(facts, dict) or not isinstance(facts.get("config_lines"), int):
            raise DataError(f"{self.facts} is damaged; remove it if config.toml is complete, or copy the run again")
        check_version(facts.get("version", 0), newest=VERSION, where=self.facts)
        lines = len(read_bytes(self.config).splitlines())
        if lines < facts["config_lines"]:
            raise DataError(
                f"{self.config} has {lines} lines of {facts['config_lines']}: it was cut off; copy the run again, or "
                "complete it"
            )

    def _newest(self, pattern: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest undamaged checkpoint with such a name; None if there is none of that name."""
        found = sorted(self.checkpoints.glob(pattern), reverse=True)
        damaged: list[str] = []
        for folder in found:
            try:
                saved = read_checkpoint(folder)
            except DamagedCheckpointError as problem:
                damaged.append(f"{folder} is damaged ({problem.reason})")
                continue
            for sentence in damaged:
                warnings.warn(f"{sentence}; {folder.name} is used instead", DamagedWarning, stacklevel=3)
            return saved
        if damaged:
            raise CheckpointError(f"{'; '.join(damaged)}; copy the run again, or train in another folder")
        return None

    def _steps(self) -> list[Path]:
        return sorted(self.checkpoints.glob("step-*"))


def _is_row(line: bytes) -> bool:
    """Whether a line is a row of the metrics: a table of numbers with the number of its epoch."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    is_table = isinstance(row, dict) and all(isinstance(value, int | float) for value in row.values())
    return is_table and type(row.get("epoch")) is int


def _is_record(record: Any) -> bool:
    """Whether what is read of a record has the types that it was written with."""
    if not isinstance(record, dict):
        return False
    noise = record.get("noise")
    keys = {"protocol": str, "rate": float, "hash": str}
    return (
        isinstance(noise, dict)
        and all(isinstance(noise.get(key), kind) for key, kind in keys.items())
        and all(
            isinstance(record.get(key, 0), int | float) for key in ("seconds", "peak_memory_mb", "best_rsum", "pairs")
        )
        and isinstance(record.get("recipe", ""), str)
    )


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
