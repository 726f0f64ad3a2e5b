"""The table of verdicts as a report reads it: numbers of all pairs, words of those that are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.errors import DataError
from sremkit.extras import require

# What a report says of a pair; a table may lack any of them.
SHOWN = ("id", "image", "text", "mismatch_score", "rank_i2t", "rank_t2i", "better_text", "better_text_id",
         "better_image", "problem")  # fmt: skip
DISTINCT_PROBLEMS = 1000  # messages may name the file, so there may be as many as pairs


class ReportRows:
    """`pairs.parquet` by row number. Captions of large tables are never in memory all at once."""

    ROWS_AT_ONCE = 65_536

    def __init__(self, path: Path) -> None:
        parquet = require("pyarrow.parquet", extra="audit", purpose="read the verdicts of an audit")
        try:
            self._file = parquet.ParquetFile(path)
        except FileNotFoundError as cause:
            raise DataError(
                f"{path} does not exist; name the folder of a finished audit, or run `srem audit` first"
            ) from cause
        except (OSError, ValueError) as cause:
            raise DataError(
                f"{path} is not a readable Parquet file ({cause}); run the audit again"
            ) from cause
        self.columns = frozenset(self._file.schema_arrow.names)
        groups = range(self._file.num_row_groups)
        self._starts = np.cumsum([0, *(self._file.metadata.row_group(k).num_rows for k in groups)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def numbers(self, column: str) -> np.ndarray:
        """(n,) float64; NaN where there is none, and everywhere if the table lacks the column."""
        if column not in self.columns:
            return np.full(len(self), np.nan)
        values = self._file.read([column]).column(0)
        return values.cast("double").to_numpy().astype(np.float64)

    def flags(self, column: str) -> np.ndarray:
        """(n,) bool; False where there is none."""
        if column not in self.columns:
            return np.zeros(len(self), dtype=bool)
        return self._file.read([column]).column(0).cast("bool").fill_null(False).to_numpy().astype(bool)

    def read(self, rows: Iterable[int]) -> dict[int, dict[str, Any]]:
        """What is shown of these pairs, by row; columns that the table lacks are None."""
        wanted = np.unique(np.fromiter(rows, dtype=np.int64))
        columns = [name for name in SHOWN if name in self.columns]
        nothing = dict.fromkeys(SHOWN)
        found: dict[int, dict[str, Any]] = {int(row): dict(nothing) for row in wanted}
        group_of = np.searchsorted(self._starts, wanted, side="right") - 1
        for group in np.unique(group_of) if columns else ():
            here = wanted[group_of == group]
            part = self._file.read_row_group(int(group), columns=columns).take(here - self._starts[group])
            for row, values in zip(here, part.to_pylist(), strict=True):
                found[int(row)].update(values)
        return found

    def first_rows(self, column: str, values: set[str]) -> dict[str, int]:
        """The first row with each of these texts in a column."""
        pyarrow = require("pyarrow", extra="audit", purpose="read the verdicts of an audit")
        compute = require("pyarrow.compute", extra="audit", purpose="read the verdicts of an audit")
        wanted = pyarrow.array(sorted(values), type=pyarrow.string())
        found: dict[str, int] = {}
        for start, part in self._slices(column) if values else ():
            texts = part.cast(pyarrow.string())
            for row in np.flatnonzero(compute.is_in(texts, value_set=wanted)):
                found.setdefault(texts[int(row)].as_py(), start + int(row))
        return found

    def problems(self, examples: int) -> dict[str, tuple[int, list[int]]]:
        """What was wrong -> the number of pairs, and the rows of the first few."""
        found: dict[str, tuple[int, list[int]]] = {}
        for start, part in self._slices("problem"):
            for row in np.flatnonzero(part.is_valid()):
                text = str(part[int(row)].as_py())
                if text not in found and len(found) >= DISTINCT_PROBLEMS:
                    text = "other problems"
                count, rows = found.get(text, (0, []))
                found[text] = (count + 1, [*rows, start + int(row)] if len(rows) < examples else rows)
        return found

    def _slices(self, column: str) -> Iterator[tuple[int, Any]]:
        """The first row and the values of each slice of a column; nothing if the table lacks it."""
        start = 0
        for batch in (
            self._file.iter_batches(self.ROWS_AT_ONCE, columns=[column]) if column in self.columns else ()
        ):
            yield start, batch.column(0)
            start += batch.num_rows
