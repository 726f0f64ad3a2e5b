"""Features by row number: in memory, memory-mapped, int8 with a scale, or of varying length."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sremkit.data.pairs import FeatureRows
from sremkit.errors import DataError

#: Gives memory of a shape and number format, for rows to be written to.
Place = Callable[[tuple[int, ...], np.dtype], np.ndarray]
#: What a device can take as it is.
RAW_FORMATS = tuple(np.dtype(name) for name in ("float16", "float32", "int8", "uint8"))


class ArrayFeatures:
    """Features in memory, optionally small integers that a `scale` per column turns into numbers."""

    def __init__(self, array: np.ndarray, *, scale: np.ndarray | None = None, name: str = "features") -> None:
        if array.ndim not in (2, 3):
            raise DataError(
                f"{name}: expected shape (items, width) or (items, regions, width), got {array.shape}"
            )
        self.array = array
        self.scale = scale
        self.name = name

    @property
    def dim(self) -> int:
        return self.array.shape[-1]

    def __len__(self) -> int:
        return len(self.array)

    def rows(self, indices: np.ndarray) -> FeatureRows:
        values = self.array[indices].astype(np.float32)
        if self.scale is not None:
            values *= self.scale
        return checked_rows(values, indices, name=self.name)

    def raw_rows(self, indices: np.ndarray, place: Place) -> FeatureRows | None:
        """The rows as they are stored, in the memory that `place` gives; None if a device has no such format.

        What is not float32 is still to be scaled by a float32 `scale`.
        """
        if self.scale is not None and (self.scale.dtype != np.float32 or self.array.dtype == np.float32):
            return None
        return _raw_rows(self.array, np.asarray(indices), place, name=self.name)


class MappedFeatures:
    """Features in a `.npy` file of any size, memory-mapped; only the rows asked for are read.

    Touched pages of a mapping count as the process's own memory until they are given back, so a pass over
    40 GB would look like 40 GB. They are given back every `release_bytes`; the system's cache keeps them.
    """

    def __init__(
        self, path: str | Path, *, row_of_item: np.ndarray | None = None, release_bytes: int = 128 << 20
    ) -> None:
        self.path = Path(path)
        self.row_of_item = row_of_item
        self.release_bytes = release_bytes
        self._open()
        if self._array.ndim not in (2, 3):
            raise DataError(
                f"{self.path}: expected shape (items, width) or (items, regions, width), "
                f"got {self._array.shape}"
            )

    def _open(self) -> None:
        try:
            self._array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError as cause:
            raise DataError(f"{self.path} does not exist; check the folder and the split name") from cause
        except (ValueError, EOFError) as cause:
            raise DataError(
                f"{self.path} is not a readable .npy file ({cause}); copy or make it again"
            ) from cause
        self._unreleased = 0

    def __getstate__(self) -> dict:  # worker processes map the file themselves
        return {k: v for k, v in self.__dict__.items() if k != "_array"}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._open()

    @property
    def dim(self) -> int:
        return self._array.shape[-1]

    @property
    def num_file_rows(self) -> int:
        return len(self._array)

    def __len__(self) -> int:
        return len(self._array) if self.row_of_item is None else len(self.row_of_item)

    def rows(self, indices: np.ndarray) -> FeatureRows:
        file_rows = np.asarray(indices) if self.row_of_item is None else self.row_of_item[indices]
        taken = self._array[file_rows]
        self._release_after(taken.nbytes)
        return checked_rows(taken.astype(np.float32, copy=False), file_rows, name=str(self.path))

    def raw_rows(self, indices: np.ndarray, place: Place) -> FeatureRows | None:
        """The rows as the file has them, read straight into the memory that `place` gives.

        None if a device has no such number format.
        """
        file_rows = np.asarray(indices) if self.row_of_item is None else self.row_of_item[indices]
        found = _raw_rows(self._array, file_rows, place, name=str(self.path))
        if found is not None:
            self._release_after(found.values.nbytes)
        return found

    def _release_after(self, read_bytes: int) -> None:
        self._unreleased += read_bytes
        mapping = getattr(self._array, "_mmap", None)
        if self._unreleased >= self.release_bytes and mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)
            self._unreleased = 0


class RaggedFeatures:
    """Features with another number of regions for each item: `values[starts[k]:starts[k + 1]]` is item k."""

    def __init__(self, values: np.ndarray, starts: np.ndarray, *, name: str = "features") -> None:
        if values.ndim != 2:
            raise DataError(f"{name}: ragged features are stored as (all regions, width), got {values.shape}")
        if starts[0] != 0 or starts[-1] != len(values) or (np.diff(starts) < 1).any():
            raise DataError(
                f"{name}: starts must rise from 0 to {len(values)} with at least one region an item"
            )
        self.values = values
        self.starts = np.asarray(starts, dtype=np.int64)
        self.name = name

    @property
    def dim(self) -> int:
        return self.values.shape[-1]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def rows(self, indices: np.ndarray) -> FeatureRows:
        indices = np.asarray(indices)
        counts = self.starts[indices + 1] - self.starts[indices]
        mask = np.arange(counts.max())[None, :] < counts[:, None]  # (k, r)
        values = np.zeros((*mask.shape, self.dim), dtype=np.float32)
        source_rows = np.concatenate([np.arange(self.starts[k], self.starts[k + 1]) for k in indices])
        values[mask] = self.values[source_rows]
        return FeatureRows(checked_rows(values, indices, name=self.name).values, mask)


def _raw_rows(array: np.ndarray, rows: np.ndarray, place: Place, *, name: str) -> FeatureRows | None:
    if array.dtype not in RAW_FORMATS:
        return None
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(array):
        raise IndexError(f"{name}: rows {rows.min()} to {rows.max()} were asked for, of {len(array)}")
    values = place((len(rows), *array.shape[1:]), array.dtype)
    # In one go and without the interpreter's lock; "raise" in place of "clip" would go by way of a copy.
    np.take(array, rows, axis=0, out=values, mode="clip")
    return checked_rows(values, rows, name=name)


def _surely_finite(values: np.ndarray) -> bool:
    """Whether a quick look shows that there is no NaN and no infinity; False is only a reason to look closer."""
    if not np.issubdtype(values.dtype, np.floating):
        return True
    if values.dtype == np.float16:  # whose sum takes ten times as long as a look at its bits
        # As integers, what is not finite lies above all other numbers: with a sign those without the minus,
        # without a sign those with it.
        with_sign, without_sign = (values.view(kind).max(initial=0) for kind in (np.int16, np.uint16))
        return bool(with_sign < 0x7C00 and without_sign < 0xFC00)
    # A sum is NaN or infinite if any term is: one pass, no temporary array. That of a finite row may overflow.
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.isfinite(values.sum()))


def checked_rows(values: np.ndarray, source_rows: np.ndarray, *, name: str) -> FeatureRows:
    """Wrap freshly read rows; refuse NaN and infinity, naming the row they came from."""
    if not _surely_finite(values):
        finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        if not finite.all():
            bad = int(np.asarray(source_rows)[np.argmin(finite)])
            raise DataError(
                f"{name}, row {bad}: the features hold NaN or infinite values; extract this row again, "
                "or leave its pairs out"
            )
    mask = np.ones(values.shape[:2], dtype=bool) if values.ndim == 3 else None
    return FeatureRows(values, mask)
