"""Features by row number: in memory, int8 with a scale, or memory-mapped."""

from __future__ import annotations

import mmap
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from sremkit.data.pairs import FeatureRows
from sremkit.errors import DataError
from sremkit.io import first_line

#: Returns memory of a shape and dtype, into which rows are read.
Allocate = Callable[[tuple[int, ...], np.dtype], np.ndarray]
#: Stored dtypes that a device can convert by itself.
RAW_DTYPES = tuple(np.dtype(name) for name in ("float16", "float32", "int8", "uint8"))
RELEASE_BYTES = 128 << 20


def open_npy(path: Path, *, mmap_mode: Literal["r"] | None = "r", remedy: str = "the split name") -> np.ndarray:
    """The array of numbers in a `.npy` file; raises `DataError` for anything else.

    Args:
        remedy: what to check, apart from the folder, if the file does not exist.
    """
    try:
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except FileNotFoundError as cause:
        raise DataError(f"{path} does not exist; check the folder and {remedy}") from cause
    except (ValueError, EOFError, OSError, MemoryError, OverflowError, TypeError, SyntaxError, RecursionError,
            tokenize.TokenError) as cause:  # fmt: skip
        reason = "it holds something else" if "pickle" in str(cause) else first_line(cause)
        raise DataError(f"{path} is not a readable .npy file ({reason}); copy or make it again") from cause
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{path} is an archive of arrays (.npz); save one array with numpy.save")
    if array.dtype.kind not in "fiub":
        raise DataError(f"{path} holds {array.dtype}; numbers are expected")
    return array


class ArrayFeatures:
    """Features in memory, optionally quantised: `scale` (d,) multiplies each column."""

    def __init__(self, array: np.ndarray, *, scale: np.ndarray | None = None, name: str = "features") -> None:
        if array.ndim not in (2, 3):
            raise DataError(f"{name}: expected shape (items, width) or (items, regions, width), got {array.shape}")
        if 0 in array.shape[1:]:
            raise DataError(f"{name}: its rows hold no numbers (shape {array.shape}); make it again")
        self.array = array
        self.scale = scale
        self.name = name

    @property
    def dim(self) -> int:
        return self.array.shape[-1]

    def __len__(self) -> int:
        return len(self.array)

    def rows(self, indices: np.ndarray) -> FeatureRows:
        values = self.array[indices].astype(np.float32, copy=False)
        if self.scale is not None:
            values *= self.scale
        return checked_rows(values, indices, name=self.name)

    def raw_rows(self, indices: np.ndarray, allocate: Allocate) -> FeatureRows | None:
        """The rows in their stored dtype, in memory from `allocate`; None if devices do not support the dtype.

        Rows that are not float32 still have to be multiplied by `scale`.
        """
        array, scale = self.array, self.scale
        if array.dtype not in RAW_DTYPES:
            return None
        if scale is not None and (scale.dtype != np.float32 or array.dtype == np.float32):
            return None
        rows = np.asarray(indices)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(array):
            raise IndexError(f"{self.name}: rows {rows.min()} to {rows.max()} were requested, of {len(array)}")
        values = allocate((len(rows), *array.shape[1:]), array.dtype)
        # One call that releases the GIL; mode="raise" would copy through a temporary array.
        np.take(array, rows, axis=0, out=values, mode="clip")
        return checked_rows(values, rows, name=self.name)


class MappedFeatures(ArrayFeatures):
    """Features in a memory-mapped `.npy` file of any size; only requested rows are read.

    Pages of a mapping count as resident memory once they are read, so a pass over 40 GB would appear to take
    40 GB. They are released every `RELEASE_BYTES`; the page cache keeps them.

    Args:
        row_of_item: (n,) row of the file for each item; by default item k is row k.
    """

    def __init__(self, path: str | Path, *, row_of_item: np.ndarray | None = None) -> None:
        self.path = Path(path)
        self.row_of_item = row_of_item
        self._unreleased = 0
        super().__init__(self._mapped(), name=str(self.path))

    def _mapped(self) -> np.ndarray:
        return open_npy(self.path)

    def __getstate__(self) -> dict:  # worker processes map the file themselves
        return {**self.__dict__, "array": None}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self.array = self._mapped()

    @property
    def num_file_rows(self) -> int:
        return len(self.array)

    def __len__(self) -> int:
        return len(self.array) if self.row_of_item is None else len(self.row_of_item)

    def rows(self, indices: np.ndarray) -> FeatureRows:
        return self._released(super().rows(self._file_rows(indices)))

    def raw_rows(self, indices: np.ndarray, allocate: Allocate) -> FeatureRows | None:
        found = super().raw_rows(self._file_rows(indices), allocate)
        return None if found is None else self._released(found)

    def _file_rows(self, indices: np.ndarray) -> np.ndarray:
        return np.asarray(indices) if self.row_of_item is None else self.row_of_item[indices]

    def _released(self, found: FeatureRows) -> FeatureRows:
        self._unreleased += found.values.size * self.array.itemsize
        mapping = getattr(self.array, "_mmap", None)
        if self._unreleased >= RELEASE_BYTES and mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)
            self._unreleased = 0
        return found


def _is_finite_fast(values: np.ndarray) -> bool:
    """A fast check for NaN and infinity without false positives; False needs an exact check."""
    if not np.issubdtype(values.dtype, np.floating):
        return True
    if values.dtype == np.float16:  # a float16 sum is ten times slower than this comparison of bit patterns
        # The bits of positive non-finite numbers are the largest int16, those of negative ones the largest uint16.
        signed, unsigned = (values.view(kind).max(initial=0) for kind in (np.int16, np.uint16))
        return bool(signed < 0x7C00 and unsigned < 0xFC00)
    # A sum is NaN or infinite if any term is: one pass, no temporary array. A sum of finite terms may overflow.
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.isfinite(values.sum()))


def checked_rows(values: np.ndarray, source_rows: np.ndarray, *, name: str) -> FeatureRows:
    """Wrap rows with their mask; raise `DataError` with file and row if they hold NaN or infinity."""
    if not _is_finite_fast(values):
        finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        if not finite.all():
            bad = int(np.asarray(source_rows)[np.argmin(finite)])
            raise DataError(
                f"{name}, row {bad}: the features hold NaN or infinite values; extract this row again, "
                "or leave its pairs out"
            )
    mask = np.ones(values.shape[:2], dtype=bool) if values.ndim == 3 else None
    return FeatureRows(values, mask)
