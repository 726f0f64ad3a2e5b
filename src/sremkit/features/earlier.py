"""Features that were made before: the same picture or text by the same encoder need not be encoded again.

An extraction that knows the contents of its rows leaves them beside its arrays, a line a row. A later one, into another
folder, looks there first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.data.feature_folder import MANIFEST
from sremkit.data.text_files import read_json
from sremkit.features.store import VERSION, ArrayPlan

CONTENTS = {"images": "image_contents.txt", "texts": "text_contents.txt"}
NOT_THERE = -1


@dataclass(frozen=True)
class Contents:
    """What tells the content of each row from any other: a short hash, or None where nothing does."""

    images: Sequence[str | None]
    texts: Sequence[str | None]
    folders: Sequence[Path] = ()  # of earlier extractions, where the same contents are looked for

    def tables(self) -> dict[str, Iterator[str]]:
        """The lines that are left beside the arrays."""
        return {
            CONTENTS["images"]: (f"{content or ''}\n" for content in self.images),
            CONTENTS["texts"]: (f"{content or ''}\n" for content in self.texts),
        }


def content_hash(*facts: object) -> str:
    """A hash of these facts, 32 hex digits."""
    return hashlib.blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(eq=False)
class EarlierRows:
    """Where earlier extractions have the rows of this one."""

    folders: list[Path] = field(default_factory=list)
    folder_of_row: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    row_there: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _arrays: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)

    def has(self, row: int) -> bool:
        return row < len(self.folder_of_row) and self.folder_of_row[row] != NOT_THERE

    def take(self, kind: str, row: int) -> np.ndarray:
        """The features of a row that is there."""
        place = int(self.folder_of_row[row]), kind
        if place not in self._arrays:
            path = self.folders[place[0]] / f"{kind}.npy"
            self._arrays[place] = np.load(path, mmap_mode="r", allow_pickle=False)
        return self._arrays[place][self.row_there[row]]

    def count(self, start: int) -> int:
        """How many rows from `start` on are there."""
        return int(np.count_nonzero(self.folder_of_row[start:] != NOT_THERE))

    def __getstate__(self) -> dict[str, Any]:  # other processes open the arrays themselves
        return {**self.__dict__, "_arrays": {}}


def find_earlier(
    contents: Sequence[str | None],
    group: str,
    plans: Mapping[str, ArrayPlan],
    folders: Sequence[Path],
) -> EarlierRows:
    """Look for these contents in the finished extractions in `folders`.

    Args:
        group: "images" or "texts".
        plans: the arrays of this group that are going to be made, by kind; an earlier extraction must have all
            of them, by the same encoder.
    """
    found = EarlierRows(
        folder_of_row=np.full(len(contents), NOT_THERE, dtype=np.int32),
        row_there=np.zeros(len(contents), dtype=np.int64),
    )
    rows_of: dict[str, list[int]] = {}
    for row, content in enumerate(contents):
        if content is not None:
            rows_of.setdefault(content, []).append(row)
    for folder in folders:
        if not rows_of:
            break
        if not _has_the_same(folder, plans) or not (folder / CONTENTS[group]).is_file():
            continue
        first = np.load(folder / f"{next(iter(plans))}.npy", mmap_mode="r", allow_pickle=False)
        found.folders.append(folder)
        with (folder / CONTENTS[group]).open(encoding="ascii") as lines:
            for row_there, line in enumerate(lines):
                content = line.rstrip("\n")
                if content in rows_of and np.isfinite(first[row_there]).all():  # NaN could not be read then
                    rows = rows_of.pop(content)
                    found.folder_of_row[rows] = len(found.folders) - 1
                    found.row_there[rows] = row_there
    return found


def _has_the_same(folder: Path, plans: Mapping[str, ArrayPlan]) -> bool:
    """Whether a finished extraction has all these kinds, as wide, by the same encoder."""
    if not plans or not (folder / MANIFEST).is_file():
        return False
    manifest = read_json(folder / MANIFEST)
    arrays = manifest.get("arrays", {})
    return manifest.get("version") == VERSION and all(
        kind in arrays
        and arrays[kind]["encoder"] == plan.encoder
        and tuple(arrays[kind]["shape"][1:]) == plan.shape[1:]
        for kind, plan in plans.items()
    )
