"""Where extracted features go: arrays on disk, and a journal from which a killed extraction goes on.

Rows are written in order. Every few seconds they are forced to disk, and then the journal says so; whatever
was written after its last line is simply written again. So a power cut at any moment costs a few seconds of
work, and the finished files do not depend on how often the extraction was stopped.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sremkit.data.feature_folder import JOURNAL, MANIFEST
from sremkit.data.text_files import read_json
from sremkit.errors import DataError, UserError

VERSION = 1
DTYPE = np.dtype("<f2")


@dataclass(frozen=True)
class ArrayPlan:
    """One array that is going to be written."""

    shape: tuple[int, ...]  # the first axis counts the rows
    encoder: str  # in words; features of another encoder must not be mixed with these

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE.itemsize


@dataclass(frozen=True)
class Plan:
    """What an extraction is going to write, of which pairs."""

    fingerprint: str  # of ids and texts
    arrays: dict[str, ArrayPlan]

    def to_dict(self) -> dict[str, Any]:
        arrays = {name: {**asdict(a), "shape": list(a.shape)} for name, a in self.arrays.items()}
        return {"version": VERSION, "fingerprint": self.fingerprint, "arrays": arrays}


class FeatureStore:
    """The folder of one extraction, new or begun before; `with` it, write rows, then `finish`.

    Attributes:
        complete: whether an earlier run has finished it; then there is nothing to write.
        done: how many rows of a group of arrays ("images", "texts") are safe on disk.
        problems: what was wrong with the rows that could not be made, by row of "images".
    """

    def __init__(self, folder: str | Path, plan: Plan, *, save_seconds: float = 5.0) -> None:
        self.folder = Path(folder)
        self.plan = plan
        self.save_seconds = save_seconds
        self.done = {"images": 0, "texts": 0}
        self.problems: dict[int, str] = {}
        self.complete = (self.folder / MANIFEST).exists()
        self._journal: BinaryIO | None = None
        self._files: dict[str, BinaryIO] = {}
        self._starts: dict[str, int] = {}  # byte at which the rows of each file begin
        self._written = dict(self.done)
        self._unsaved: dict[int, str] = {}
        self._saved_at = time.monotonic()

    def __enter__(self) -> FeatureStore:
        if self.complete:
            self._refuse_other_plan(read_json(self.folder / MANIFEST))
            (self.folder / JOURNAL).unlink(missing_ok=True)  # killed between the last two steps of `finish`
            return self
        if not (self.folder / JOURNAL).exists():
            self._begin()
        self._journal = (self.folder / JOURNAL).open("r+b")
        try:
            self._read_journal()
            self._open_arrays()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if self._journal is not None:
                self.save()
        except OSError:
            if error is None:
                raise
        finally:
            self._close()
        if isinstance(error, OSError):  # such as a full disk
            raise UserError(
                f"the extraction into {self.folder} stopped ({error}); put that right and give the same command "
                "again: it goes on from here"
            ) from error

    def write(
        self, group: str, first: int, rows: Mapping[str, np.ndarray], problems: Mapping[int, str]
    ) -> None:
        """Put these rows behind the ones before them; `problems` names rows that hold NaN."""
        if first != self._written[group]:
            raise ValueError(f"row {first} of '{group}' was given where row {self._written[group]} is due")
        lengths = {len(values) for values in rows.values()}
        if len(lengths) != 1:
            raise ValueError(f"the arrays of '{group}' were given different numbers of rows: {lengths}")
        for name, values in rows.items():
            self._write_rows(name, first, values)
        # Only now: an interruption above leaves the count as it was, and the rows are written again.
        self._unsaved.update(problems)
        self._written[group] = first + lengths.pop()
        if time.monotonic() - self._saved_at >= self.save_seconds:
            self.save()

    def save(self) -> None:
        """Force everything written so far to disk, then say so in the journal."""
        assert self._journal is not None
        if self._written != self.done:
            for file in self._files.values():
                _to_disk(file)
            entry = {"done": self._written, "problems": {str(k): v for k, v in self._unsaved.items()}}
            self._journal.write(json.dumps(entry).encode() + b"\n")
            _to_disk(self._journal)
            self.done = dict(self._written)
            self.problems.update(self._unsaved)
            self._unsaved = {}
        self._saved_at = time.monotonic()

    def finish(self, tables: Mapping[str, Iterable[str]], facts: Mapping[str, Any]) -> None:
        """Write the tables, given as lines by file name, and last of all the manifest."""
        self.save()
        for name, lines in tables.items():
            write_whole(self.folder / name, lines)
        write_whole(self.folder / MANIFEST, [json.dumps({**facts, **self.plan.to_dict()}, indent=1) + "\n"])
        self._close()
        (self.folder / JOURNAL).unlink()
        self.complete = True

    def _write_rows(self, name: str, first: int, values: np.ndarray) -> None:
        file, plan = self._files[name], self.plan.arrays[name]
        if values.shape[1:] != plan.shape[1:]:
            raise ValueError(f"{name}: rows of shape {values.shape[1:]} where {plan.shape[1:]} is due")
        file.seek(self._starts[name] + first * (plan.num_bytes // plan.shape[0]))
        file.write(np.ascontiguousarray(values, dtype=DTYPE).tobytes())

    def _begin(self) -> None:
        """Start a new extraction, in a folder of its own: nothing of the user's is ever overwritten."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            others = [entry.name for entry in self.folder.iterdir() if not entry.name.startswith(".partial-")]
        except (FileExistsError, NotADirectoryError) as cause:
            raise UserError(f"{self.folder} is a file; name a folder for the features") from cause
        if others:
            raise UserError(
                f"{self.folder} holds other files, such as {min(others)}; name a new folder for the features"
            )
        write_whole(self.folder / JOURNAL, [json.dumps(self.plan.to_dict()) + "\n"])

    def _read_journal(self) -> None:
        journal = self._journal
        assert journal is not None
        try:
            # This kind of lock is not passed on to worker processes, which may outlive a killed extraction.
            fcntl.lockf(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            raise UserError(
                f"another extraction is writing to {self.folder}; wait for it, or name another folder"
            ) from cause
        self._refuse_other_plan(json.loads(journal.readline()))
        end = journal.tell()
        for line in journal:
            if not line.endswith(b"\n"):
                break  # cut off in the middle of a line
            entry = json.loads(line)
            self.done = entry["done"]
            self.problems.update({int(row): problem for row, problem in entry["problems"].items()})
            end += len(line)
        journal.truncate(end)
        journal.seek(end)
        self._written = dict(self.done)

    def _refuse_other_plan(self, stored: dict[str, Any]) -> None:
        own = json.loads(json.dumps(self.plan.to_dict()))
        remedy = "name another folder, or remove this one to begin anew"
        if stored.get("version") != VERSION:
            raise UserError(f"{self.folder} was written by another version of sremkit; {remedy}")
        if list(stored["arrays"]) != list(own["arrays"]):
            raise UserError(
                f"{self.folder} holds {', '.join(stored['arrays'])}, but {', '.join(own['arrays'])} "
                f"was asked for; {remedy}"
            )
        if stored["fingerprint"] != own["fingerprint"]:
            raise UserError(
                f"the pairs have changed since the extraction in {self.folder} began: "
                f"other ids, texts or order; {remedy}"
            )
        if stored["arrays"] != own["arrays"]:
            raise UserError(f"{self.folder} was made with other encoders; {remedy}")

    def _open_arrays(self) -> None:
        untouched = not any(self.done.values())
        self._refuse_full_disk()
        for name, plan in self.plan.arrays.items():
            path = self.folder / f"{name}.npy"
            if untouched:
                # Only reserves the space; mapped pages would count as this process's memory.
                np.lib.format.open_memmap(path, mode="w+", dtype=DTYPE, shape=plan.shape)
            try:
                self._files[name] = path.open("r+b")
                self._starts[name] = _start_of_data(self._files[name])
                intact = os.path.getsize(path) == self._starts[name] + plan.num_bytes
            except (OSError, ValueError):
                intact = False
            if not intact:
                raise DataError(
                    f"{path} is not as the extraction left it; remove {self.folder} to begin anew"
                )

    def _refuse_full_disk(self) -> None:
        needed = sum(plan.num_bytes for plan in self.plan.arrays.values())
        files = [self.folder / f"{name}.npy" for name in self.plan.arrays]
        needed -= sum(file.stat().st_blocks * 512 for file in files if file.exists())
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise UserError(
                f"the features take {needed / 1e9:.1f} GB more, but {self.folder} has {free / 1e9:.1f} GB left; "
                "free some space, name a folder on another disk, or leave out 'grid', which is the largest"
            )

    def _close(self) -> None:
        for file in [*self._files.values(), *([self._journal] if self._journal else [])]:
            file.close()
        self._files, self._journal = {}, None


def write_whole(path: Path, lines: Iterable[str]) -> None:
    """Write a text file under a temporary name and rename it: it is there completely or not at all."""
    partial = path.with_name(f".partial-{path.name}")
    with partial.open("wb") as file:
        for line in lines:
            file.write(line.encode("utf-8", errors="backslashreplace"))
        _to_disk(file)
    partial.replace(path)


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _start_of_data(file: BinaryIO) -> int:
    """Where the rows of an open .npy file begin."""
    file.seek(0)
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    return file.tell()
