"""Reuse of extracted features: the same image or text is not encoded twice by the same encoder.

An extraction that knows content hashes of its rows writes them next to its arrays, one per line. A later extraction
into another folder copies rows with the same hash.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.data.formats.features import MANIFEST
from sremkit.data.pairs import MISSING
from sremkit.errors import UserNotice
from sremkit.features.store import DTYPE, VERSION, ArraySpec
from sremkit.io import first_line, read_json_or_empty

HASH_FILES = {"images": "image_contents.txt", "texts": "text_contents.txt"}


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
