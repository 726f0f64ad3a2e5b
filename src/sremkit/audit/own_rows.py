"""Every row the user has given, whether it became a pair or not: nothing is lost on the way to the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sremkit.data.formats.table import find_columns
from sremkit.data.pairs import Pairs, Problems
from sremkit.data.tabular import ParquetTable, Table, open_table
from sremkit.extras import require

NO_PAIR = -1


class Problem(NamedTuple):
    """Why a row cannot be judged."""

    reason: str  # short, so that equal ones can be counted
    sentence: str  # with what there is to say of this one


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The user's rows in their own order."""

    pair_of_row: np.ndarray  # (rows,) int64, NO_PAIR where the row did not become one
    problems: dict[int, Problem]  # by row
    columns: dict[str, Any] = field(default_factory=dict)  # the user's own: a list or an Arrow array each
    roles: dict[str, str] = field(default_factory=dict)  # which own column is the "id", "image" and "text"

    def __len__(self) -> int:
        return len(self.pair_of_row)


def rows_of_pairs(pairs: Pairs, columns: Mapping[str, list] | None = None) -> OwnRows:
    """One row a pair, then one for everything that the reader had to leave out.

    Args:
        columns: more to say of each pair.
    """
    places = pairs.skipped.places
    pair_of_row = np.concatenate([np.arange(len(pairs)), np.full(len(places), NO_PAIR)]).astype(np.int64)
    problems = {
        len(pairs) + k: Problem(reason, f"{where}: {reason}") for k, (where, reason) in enumerate(places)
    }
    padded = {name: [*values, *[None] * len(places)] for name, values in (columns or {}).items()}
    return OwnRows(pair_of_row, problems, padded)


def rows_of_table(
    path: Path, pairs: Pairs, options: Mapping[str, Any], more_reasons: Mapping[int, str]
) -> OwnRows:
    """The rows of a CSV, TSV or Parquet file with all their columns; rows of other splits are passed over.

    Args:
        pairs: what the table's reader made of the file.
        options: those that it was read with.
        more_reasons: by row number, why further rows did not become pairs.
    """
    table = open_table(path, delimiter=options.get("delimiter"), quoting=options.get("quoting"))
    named = {what: options.get(what) for what in ("image", "text", "id", "split_column")}
    names = _unique(table.columns)
    roles = {what: names[k] for what, k in find_columns(path, table, **named).items() if k is not None}
    roles.pop("split_column", None)
    assert pairs.source_rows is not None
    pair_of_number = {int(number): k for k, number in enumerate(pairs.source_rows)}
    reason_at = dict(pairs.skipped.places)
    read = _parquet_rows if isinstance(table, ParquetTable) else _text_rows
    where_of_number, take = read(path, table)
    problem_of_number: dict[int, Problem] = {}
    for number, where in where_of_number.items():
        reason = reason_at.get(where) or more_reasons.get(number)
        if reason is not None and number not in pair_of_number:
            problem_of_number[number] = Problem(reason, f"{where}: {reason}")
    numbers = sorted({*pair_of_number, *problem_of_number})
    return OwnRows(
        np.array([pair_of_number.get(number, NO_PAIR) for number in numbers], dtype=np.int64),
        {k: problem_of_number[number] for k, number in enumerate(numbers) if number in problem_of_number},
        dict(zip(names, take(numbers), strict=True)),
        roles,
    )


Take = Callable[[list[int]], list[Any]]  # from row numbers to those rows of every column


def _text_rows(path: Path, table: Table) -> tuple[dict[int, str], Take]:
    """Where each row stands, and a way to take some; a row that is no row of the table has empty cells."""
    broken = Problems("skip")
    cells: dict[int, Sequence[object]] = {}
    where_of_number: dict[int, str] = {}
    for row in table.rows(range(len(table.columns)), broken):
        cells[row.number] = row.values
        where_of_number[row.number] = row.where
    # A row that cannot be split into cells has a number and, in the same order, a place among the problems.
    missing = [number for number in range(table.num_rows) if number not in cells]
    for number, (where, _) in zip(missing, broken.skipped().places, strict=True):
        where_of_number[number] = where
    nothing = [None] * len(table.columns)

    def take(numbers: list[int]) -> list[Any]:
        rows = [cells.get(number, nothing) for number in numbers]
        return [[row[k] for row in rows] for k in range(len(table.columns))]

    return where_of_number, take


def _parquet_rows(path: Path, table: Table) -> tuple[dict[int, str], Take]:
    parquet = require("pyarrow.parquet", extra="data", purpose="read Parquet files")

    def take(numbers: list[int]) -> list[Any]:
        taken = parquet.ParquetFile(path).read().take(np.array(numbers, dtype=np.int64))
        return taken.columns

    return {number: f"{path}, row {number}" for number in range(table.num_rows)}, take


def _unique(names: Sequence[str]) -> list[str]:
    """Column names as they are; one that comes twice gets its number, so that no column is lost."""
    return [name if name not in names[:k] else f"{name}.{k}" for k, name in enumerate(names)]
