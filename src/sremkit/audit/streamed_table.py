"""The table of a finished audit, read piece by piece: however many rows it has, few are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sremkit.audit.exact_line import line_of
from sremkit.audit.stages import Choice
from sremkit.audit.table import PAIRS, arrow, damage_is_said, own_names, source_facts
from sremkit.errors import DataError, UserError
from sremkit.extras import require

if TYPE_CHECKING:
    import pyarrow as pa

Which = Literal["keep", "drop"]
ROWS_AT_ONCE = 16_384


class StreamedTable:
    """The rows of an audit's table in their order, some at a time.

    Args:
        folder: of a finished audit.
    """

    def __init__(self, folder: Path) -> None:
        self._parquet = require("pyarrow.parquet", extra="audit", purpose="read the verdicts")
        self.path = folder / PAIRS
        if not self.path.is_file():
            raise DataError(
                f"{folder} holds no finished audit (there is no {PAIRS} in it); make it with `srem audit`"
            )
        with damage_is_said(self.path):
            self.schema: pa.Schema = self._parquet.read_schema(self.path)
            self.num_rows: int = self._parquet.read_metadata(self.path).num_rows
        self.own = own_names(self.schema)
        self.source = source_facts(self.schema)

    def pieces(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """These columns of some rows, then of the next ones."""
        pa = arrow()
        with damage_is_said(self.path), self._parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=list(dict.fromkeys(columns))):
                yield pa.Table.from_batches([batch]).select(columns)


class ChosenRows:
    """The rows that an export writes: those worth keeping, or the others.

    A row is kept when it was not called a mismatch and nothing kept it from being judged.

    Args:
        choice: in the place of the one that the audit was made with.
        split: only the pairs of this one.
    """

    def __init__(
        self, table: StreamedTable, which: Which, choice: Choice | None = None, split: str | None = None
    ) -> None:
        self.table = table
        self.which = which
        self.split = split
        self._split_column = None if split is None else _split_column(table)
        self._line = None if choice is None else line_of(lambda: _scores(table), choice)
        self.count = sum(len(piece) for piece in self.pieces(["id"]))

    def pieces(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """These columns of the chosen rows, some at a time."""
        verdict = "is_mismatch" if self._line is None else "mismatch_score"
        needed = ["problem", verdict, *([self._split_column] if self._split_column else [])]
        for piece in self.table.pieces([*columns, *(name for name in needed if name not in columns)]):
            chosen = self._chosen(piece, verdict)
            if chosen.any():
                yield piece.filter(arrow().array(chosen)).select(columns)

    def values(self, column: str) -> Iterator[Any]:
        """The values of one column, one by one."""
        for piece in self.pieces([column]):
            yield from piece[column].to_pylist()

    def _chosen(self, piece: pa.Table, verdict: str) -> np.ndarray:
        usable = piece["problem"].is_null().to_numpy()
        if self._line is None:
            wrong = np.array([bool(value) for value in piece[verdict].to_pylist()], dtype=bool)
        else:
            score = _as_floats(piece[verdict])
            wrong = np.isfinite(score) & (np.nan_to_num(score, nan=np.inf) < self._line)
        chosen = (usable & ~wrong) if self.which == "keep" else ~(usable & ~wrong)
        if self._split_column is not None:
            chosen &= np.array([value == self.split for value in piece[self._split_column].to_pylist()])
        return chosen


def _split_column(table: StreamedTable) -> str:
    name = table.own.get("split")
    if name is None:
        raise UserError("these pairs have no column 'split'; leave --split away")
    return name


def _scores(table: StreamedTable) -> Iterator[np.ndarray]:
    for piece in table.pieces(["mismatch_score"]):
        score = _as_floats(piece["mismatch_score"])
        yield score[np.isfinite(score)]


def _as_floats(column: Any) -> np.ndarray:
    return np.asarray(column.cast("double").to_numpy(), dtype=np.float64)  # NaN where there is none
