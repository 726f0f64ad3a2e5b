"""Stores of extracted features: arrays on disk, a journal from which an interrupted extraction resumes, and reuse.

Rows are written in order. Every few seconds they are flushed to disk, then a line of the journal records their number;
rows after its last line are written again. So a power cut costs a few seconds of work, and the finished files do not
depend on interruptions. The manifest is written last: a folder with a manifest is complete.

The same image or text is not encoded twice by the same encoder: an extraction that knows content hashes of its rows
writes them next to its arrays, one per line, and a later extraction into another folder copies rows with the same hash.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sremkit.data.formats.features import JOURNAL, MANIFEST, VERSION
from sremkit.data.pairs import MISSING
from sremkit.errors import DataError, UserError, UserNotice
from sremkit.io import (
    PARTIAL,
    atomic_write,
    check_version,
    first_line,
    read_json,
    read_json_or_empty,
    refuse_links_out,
    try_lock,
)

DTYPE = np.dtype("<f2")
HASH_FILES = {"images": "image_contents.txt", "texts": "text_contents.txt"}


@dataclass(frozen=True)
class ArraySpec:
    """Shape and encoder of one array."""

    shape: tuple[int, ...]  # (rows, ...)
    encoder: str  # its description; features of different encoders are never mixed

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE.itemsize


class FeatureStore:
    """The folder of one extraction, new or resumed. Use as a context manager, `write` rows, then `finish`.

    Args:
        fingerprint: of the ids and texts of the pairs; an extraction is resumed with the same pairs and arrays only.

    Attributes:
        complete: whether an earlier run has finished; then nothing is written.
        done: number of rows on disk, by group of arrays ("images", "texts").
        problems: why images could not be read, by row.
    """

    def __init__(
        self, folder: str | Path, fingerprint: str, arrays: dict[str, ArraySpec], *, save_seconds: float = 5.0
    ) -> None:
        self.folder = Path(folder)
        self.arrays = arrays
        stored = {name: {"shape": list(a.shape), "encoder": a.encoder} for name, a in arrays.items()}
        self.plan: dict[str, Any] = {"version": VERSION, "fingerprint": fingerprint, "arrays": stored}
        self.save_seconds = save_seconds
        self.done = {"images": 0, "texts": 0}
        self.problems: dict[int, str] = {}
        self.complete = (self.folder / MANIFEST).exists()
        self._journal: BinaryIO | None = None
        self._files: dict[str, BinaryIO] = {}
        self._starts: dict[str, int] = {}  # byte offset of the first row of each file
        self._written = dict(self.done)
        self._unsaved: dict[int, str] = {}
        self._saved_at = time.monotonic()

    def __enter__(self) -> FeatureStore:
        if self.complete:
            self._check_plan(read_json(self.folder / MANIFEST))
            (self.folder / JOURNAL).unlink(missing_ok=True)  # if killed between the last two steps of `finish`
            return self
        refuse_links_out(self.folder)
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
        if isinstance(error, OSError):  # such as no space left
            raise UserError(
                f"the extraction into {self.folder} stopped ({error}); solve that and give the same command "
                "again: it resumes from here"
            ) from error

    def write(self, group: str, first: int, rows: Mapping[str, np.ndarray], problems: Mapping[int, str]) -> None:
        """Append rows; `problems` explains rows that hold NaN."""
        if first != self._written[group]:
            raise ValueError(f"row {first} of '{group}' was given where row {self._written[group]} is expected")
        lengths = {len(values) for values in rows.values()}
        if len(lengths) != 1:
            raise ValueError(f"the arrays of '{group}' were given different numbers of rows: {lengths}")
        for name, values in rows.items():
            self._write_rows(name, first, values)
        # Last: after an interruption above, the rows are written again.
        self._unsaved.update(problems)
        self._written[group] = first + lengths.pop()
        if time.monotonic() - self._saved_at >= self.save_seconds:
            self.save()

    def save(self) -> None:
        """Flush all rows to disk, then record their number in the journal."""
        assert self._journal is not None
        if self._written != self.done:
            for file in self._files.values():
                _flush(file)
            entry = {"done": self._written, "problems": {str(k): v for k, v in self._unsaved.items()}}
            self._journal.write(json.dumps(entry).encode() + b"\n")
            _flush(self._journal)
            self.done = dict(self._written)
            self.problems.update(self._unsaved)
            self._unsaved = {}
        self._saved_at = time.monotonic()

    def finish(self, tables: Mapping[str, Iterable[str]], facts: Mapping[str, Any]) -> None:
        """Write the tables, given as lines by file name, then the manifest."""
        self.save()
        for name, lines in tables.items():
            atomic_write(self.folder / name, partial(_write_lines, lines))
        atomic_write(self.folder / MANIFEST, json.dumps({**facts, **self.plan}, indent=1) + "\n")
        self._close()
        (self.folder / JOURNAL).unlink()
        for leftover in self.folder.glob(f"{PARTIAL}*"):  # of killed runs
            leftover.unlink()
        self.complete = True

    def _write_rows(self, name: str, first: int, values: np.ndarray) -> None:
        file, array = self._files[name], self.arrays[name]
        if values.shape[1:] != array.shape[1:]:
            raise ValueError(f"{name}: rows of shape {values.shape[1:]} where {array.shape[1:]} is expected")
        file.seek(self._starts[name] + first * (array.num_bytes // array.shape[0]))
        file.write(np.ascontiguousarray(values, dtype=DTYPE).tobytes())

    def _begin(self) -> None:
        """Start a new extraction in an empty folder; existing files are never overwritten."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            others = [entry.name for entry in self.folder.iterdir() if not entry.name.startswith(PARTIAL)]
        except (FileExistsError, NotADirectoryError) as cause:
            raise UserError(f"{self.folder} is a file; name a folder for the features") from cause
        if others:
            raise UserError(
                f"{self.folder} holds other files, such as {min(others)}; name a new folder for the features"
            )
        atomic_write(self.folder / JOURNAL, json.dumps(self.plan) + "\n")

    def _read_journal(self) -> None:
        journal = self._journal
        assert journal is not None
        if not try_lock(journal):
            raise UserError(f"another extraction is writing to {self.folder}; wait for it, or name another folder")
        try:
            plan = json.loads(journal.readline())
        except (ValueError, RecursionError):
            plan = None
        self._check_plan(plan)
        end = journal.tell()
        for line in journal:
            if not line.endswith(b"\n"):
                break  # truncated line
            try:
                entry = json.loads(line)
                done, problems = dict(entry["done"]), {int(row): text for row, text in entry["problems"].items()}
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                break  # damaged: rows from here on are written again
            self.done = done
            self.problems.update(problems)
            end += len(line)
        journal.truncate(end)
        journal.seek(end)
        self._written = dict(self.done)

    def _check_plan(self, stored: Any) -> None:
        remedy = "name another folder, or remove this one to start again"
        if not isinstance(stored, dict) or not {"version", "fingerprint", "arrays"} <= set(stored):
            raise DataError(f"the files in {self.folder} are damaged; {remedy}")
        check_version(stored["version"], newest=VERSION, where=self.folder)
        if list(stored["arrays"]) != list(self.plan["arrays"]):
            raise UserError(
                f"{self.folder} holds {', '.join(stored['arrays'])}, but {', '.join(self.plan['arrays'])} "
                f"was requested; {remedy}"
            )
        if stored["fingerprint"] != self.plan["fingerprint"]:
            raise UserError(
                f"the pairs have changed since the extraction in {self.folder} began: "
                f"other ids, texts or order; {remedy}"
            )
        if stored["arrays"] != self.plan["arrays"]:
            raise UserError(f"{self.folder} was made with other encoders; {remedy}")

    def _open_arrays(self) -> None:
        is_new = not any(self.done.values())
        self._check_disk_space()
        for name, array in self.arrays.items():
            path = self.folder / f"{name}.npy"
            if is_new:
                # Only reserves the space: rows are written to the file, since mapped pages count as resident memory.
                np.lib.format.open_memmap(path, mode="w+", dtype=DTYPE, shape=array.shape)
            try:
                self._starts[name] = np.load(path, mmap_mode="r", allow_pickle=False).offset
                self._files[name] = path.open("r+b")
                intact = os.path.getsize(path) == self._starts[name] + array.num_bytes
            except (OSError, ValueError):
                intact = False
            if not intact:
                raise DataError(f"{path} was changed since the extraction stopped; remove {self.folder} to start again")

    def _check_disk_space(self) -> None:
        needed = sum(array.num_bytes for array in self.arrays.values())
        files = [self.folder / f"{name}.npy" for name in self.arrays]
        needed -= sum(_allocated_bytes(file) for file in files if file.exists())
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


def _write_lines(lines: Iterable[str], path: Path) -> None:
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        file.writelines(lines)


def _allocated_bytes(path: Path) -> int:
    """Bytes on disk, which are fewer than the size of a sparse file."""
    state = path.stat()
    return state.st_blocks * 512 if hasattr(state, "st_blocks") else state.st_size  # Windows has none


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@dataclass(frozen=True)
class ContentHashes:
    """A hash of the content of each row; None where the content is unknown."""

    images: Sequence[str | None]
    texts: Sequence[str | None]
    folders: Sequence[Path] = ()  # of other extractions, whose features may be reused

    def tables(self) -> dict[str, Iterator[str]]:
        """Lines of the files that are written next to the arrays."""
        return {
            HASH_FILES["images"]: (f"{content or ''}\n" for content in self.images),
            HASH_FILES["texts"]: (f"{content or ''}\n" for content in self.texts),
        }


def content_hash(*facts: object) -> str:
    """A hash of these values, 32 hex digits."""
    return hashlib.blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(eq=False)
class CachedRows:
    """Rows of this extraction that other extractions hold."""

    folders: list[Path]
    folder_of_row: np.ndarray  # (n,) number of the folder, or MISSING
    cached_row: np.ndarray  # (n,) row in that folder
    _arrays: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)

    def __contains__(self, row: int) -> bool:
        return row < len(self.folder_of_row) and self.folder_of_row[row] != MISSING

    def read(self, kind: str, row: int) -> np.ndarray:
        """The features of a cached row."""
        key = int(self.folder_of_row[row]), kind
        if key not in self._arrays:
            path = self.folders[key[0]] / f"{kind}.npy"
            self._arrays[key] = np.load(path, mmap_mode="r", allow_pickle=False)
        return self._arrays[key][self.cached_row[row]]

    def count(self, start: int) -> int:
        """Number of cached rows from `start` on."""
        return int(np.count_nonzero(self.folder_of_row[start:] != MISSING))

    def __getstate__(self) -> dict[str, Any]:  # other processes open the arrays themselves
        return {**self.__dict__, "_arrays": {}}


def find_cached(group: str, arrays: Mapping[str, ArraySpec], contents: ContentHashes) -> CachedRows:
    """Find rows of "images" or "texts" in finished extractions that hold all these arrays, of the same encoder."""
    hashes = contents.images if group == "images" else contents.texts
    found = CachedRows(
        folders=[],
        folder_of_row=np.full(len(hashes), MISSING, dtype=np.int32),
        cached_row=np.zeros(len(hashes), dtype=np.int64),
    )
    rows_of: dict[str, list[int]] = {}
    for row, content in enumerate(hashes):
        if content is not None:
            rows_of.setdefault(content, []).append(row)
    for folder in contents.folders:
        if not rows_of:
            break
        if not (folder / MANIFEST).is_file() or not (folder / HASH_FILES[group]).is_file():
            continue
        try:
            stored = _open_stored(folder, group, arrays)
        except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError) as cause:
            warnings.warn(
                f"the features in {folder} are damaged ({first_line(cause)}), so they are not reused",
                UserNotice,
                stacklevel=2,
            )
            continue
        if stored is None:
            continue
        found.folders.append(folder)
        lines, first = stored
        for cached_row, content in enumerate(lines):
            if content in rows_of and np.isfinite(first[cached_row]).all():  # NaN: image was unreadable
                rows = rows_of.pop(content)
                found.folder_of_row[rows] = len(found.folders) - 1
                found.cached_row[rows] = cached_row
    return found


def _open_stored(folder: Path, group: str, arrays: Mapping[str, ArraySpec]) -> tuple[Sequence[str], np.ndarray] | None:
    """The hashes of a finished extraction and its first array; None if it lacks one of these arrays or has another
    encoder or dimension. Raises an error of any kind that damage causes."""
    manifest = read_json_or_empty(folder / MANIFEST)
    stored = manifest.get("arrays")
    is_compatible = (
        isinstance(stored, dict)
        and manifest.get("version") == VERSION
        and all(
            kind in stored
            and stored[kind]["encoder"] == array.encoder
            and tuple(stored[kind]["shape"][1:]) == array.shape[1:]
            for kind, array in arrays.items()
        )
    )
    if not arrays or not is_compatible:
        return None
    lines = (folder / HASH_FILES[group]).read_text(encoding="ascii").splitlines()
    opened = {kind: np.load(folder / f"{kind}.npy", mmap_mode="r", allow_pickle=False) for kind in arrays}
    for kind, array in opened.items():
        if array.shape != (len(lines), *arrays[kind].shape[1:]) or array.dtype != DTYPE:
            raise ValueError(f"{kind}.npy has the shape {array.shape} and {len(lines)} hashes")
    return lines, next(iter(opened.values()))
