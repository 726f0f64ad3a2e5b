"""CSV, TSV and Parquet files, read in one pass.

The CSV reader is Python's: `pyarrow.csv` cannot report and skip a single row with invalid UTF-8 or an unclosed
quotation mark.
"""

from __future__ import annotations

import codecs
import csv
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sremkit.errors import DataError
from sremkit.extras import require

OTHER_DELIMITERS = (";", "\t", "|")  # that files called .csv use instead of a comma
MAX_HEADER_BYTES = 1 << 16


class Row(NamedTuple):
    """One row of a table. Row numbers start at 0 and include malformed rows."""

    number: int
    where: str  # file and line, for messages
    values: Sequence[object]
    problem: tuple[str, str] | None = None  # reason and remedy of a malformed row, which has no values


@dataclass(frozen=True, eq=False)
class SourceTable:
    """A table after it was read: all columns of all rows, and the rows that are not pairs."""

    table: TextTable | ParquetTable | MemoryTable
    columns: list[str]  # unique names
    roles: dict[str, str]  # name of the column that holds "image", "text" and "id"
    problems: dict[int, tuple[str, str]] = field(default_factory=dict)  # by row number: where, reason


def open_table(
    path: Path, *, delimiter: str | None = None, quoting: bool | None = None, keep_rows: bool = False
) -> TextTable | ParquetTable:
    """Open a table by its suffix.

    Fields of a .csv file may be quoted, and its header shows the delimiter. In other text files tabs separate fields
    and quotation marks are text.

    Args:
        keep_rows: keep all columns in memory for `take`.
    """
    if path.suffix.lower() in (".parquet", ".pq"):
        return ParquetTable(path, keep_rows=keep_rows)
    is_csv = path.suffix.lower() == ".csv"
    return TextTable(
        path,
        delimiter=delimiter or (_find_delimiter(path) if is_csv else "\t"),
        quoting=is_csv if quoting is None else quoting,
        keep_rows=keep_rows,
    )


def unique_names(columns: Sequence[str]) -> list[str]:
    """Column names; a repeated one gets the number of its column."""
    return [name if name not in columns[:k] else f"{name}.{k}" for k, name in enumerate(columns)]


def _find_delimiter(path: Path) -> str:
    """A comma, unless the header has none outside quotation marks and contains another delimiter."""
    try:
        with open(path, "rb") as file:
            header = file.readline(MAX_HEADER_BYTES).decode("utf-8", errors="replace")
    except OSError:  # reported when the table is opened
        return ","
    unquoted = re.sub(r'"[^"]*"', "", header)
    if "," in unquoted:
        return ","
    most_frequent = max(OTHER_DELIMITERS, key=unquoted.count)
    return most_frequent if most_frequent in unquoted else ","


class TextTable:
    """A CSV or TSV file in UTF-8 whose first line names the columns.

    Attributes:
        num_rows: known after `rows` is exhausted.
    """

    def __init__(self, path: Path, *, delimiter: str, quoting: bool, keep_rows: bool = False) -> None:
        self.path = path
        self.num_rows = 0
        self.delimiter = delimiter
        self.quoting = quoting
        self.keep_rows = keep_rows
        self._kept: list[list[str] | None] = []
        self._lines = array("q")
        invalid: list[int] = []
        try:
            with open(path, "rb") as file:
                self.columns: list[str] = next(self._reader(file, invalid), [])
        except FileNotFoundError as cause:
            raise DataError(f"{path} does not exist; check the folder and the spelling") from cause
        except csv.Error as cause:
            raise DataError(f"{path}, line 1: the header cannot be read ({cause}); correct it") from cause
        if invalid:
            raise DataError(f"{path}, line 1: not UTF-8; save the file as UTF-8")
        if not self.columns:
            raise DataError(f"{path} is empty; its first line must name the columns")

    def rows(self, columns: Sequence[int]) -> Iterator[Row]:
        """Read every row, with the values of these columns; to be called once."""
        invalid: list[int] = []
        with open(self.path, "rb") as file:
            reader = self._reader(file, invalid)
            next(reader)
            while True:
                line, problem = reader.line_num + 1, None
                try:
                    fields = next(reader)
                except StopIteration:
                    return
                except csv.Error as cause:
                    fields, problem = [], ("not readable as a row", f"{cause}; look for a stray quotation mark")
                    invalid.clear()
                else:
                    if not fields:  # a blank line
                        continue
                    if invalid:
                        line, problem = invalid[0], ("not UTF-8", "save the file as UTF-8")
                        invalid.clear()
                    elif len(fields) != len(self.columns):
                        reason = f"{len(fields)} fields where the header has {len(self.columns)}"
                        problem = (reason, "add what is missing, or quote text that holds the separator")
                if self.keep_rows:
                    self._kept.append(None if problem else fields)
                    self._lines.append(line)
                self.num_rows += 1
                values = [] if problem else [fields[k] for k in columns]
                yield Row(self.num_rows - 1, f"{self.path}, line {line}", values, problem)

    def where(self, number: int) -> str:
        """File and line of a kept row."""
        return f"{self.path}, line {self._lines[number]}"

    def take(self, numbers: Sequence[int]) -> list[Any]:
        """All columns of these kept rows; malformed rows are empty."""
        empty: list[str | None] = [None] * len(self.columns)
        rows = [self._kept[number] or empty for number in numbers]
        return [[row[k] for row in rows] for k in range(len(self.columns))]

    def _reader(self, file: Iterable[bytes], invalid: list[int]):
        return csv.reader(
            _decoded_lines(file, invalid),
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self.quoting else csv.QUOTE_NONE,
            strict=True,  # else an unclosed quotation mark would swallow the rest of the file
        )


def _decoded_lines(file: Iterable[bytes], invalid: list[int]) -> Iterator[str]:
    """Lines of text; the numbers of lines that are not UTF-8 are appended to `invalid`."""
    for number, raw in enumerate(file, start=1):
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError:
            invalid.append(number)
            yield raw.decode("utf-8", errors="replace")


class ParquetTable:
    """A Parquet file, read in record batches."""

    BATCH_ROWS = 10_000

    def __init__(self, path: Path, *, keep_rows: bool = False) -> None:
        self.path = path
        self.keep_rows = keep_rows
        self._kept: list[Any] = []
        parquet = require("pyarrow.parquet", extra="data", purpose="read Parquet files")
        try:
            self._file = parquet.ParquetFile(path)
        except FileNotFoundError as cause:
            raise DataError(f"{path} does not exist; check the folder and the spelling") from cause
        except (OSError, ValueError) as cause:
            raise DataError(f"{path} is not a readable Parquet file ({cause}); copy or make it again") from cause
        self.columns = list(self._file.schema_arrow.names)
        self.num_rows = self._file.metadata.num_rows

    def rows(self, columns: Sequence[int]) -> Iterator[Row]:
        names = [self.columns[k] for k in columns]
        wanted = None if self.keep_rows else list(dict.fromkeys(names))
        number = 0
        try:
            for raw in self._file.iter_batches(self.BATCH_ROWS, columns=wanted):
                batch, invalid = _with_valid_text(raw)
                if self.keep_rows:
                    self._kept.append(batch)
                lists = [batch.column(name).to_pylist() for name in names]
                not_utf8 = set().union(*(invalid.get(name, ()) for name in names))
                for k, values in enumerate(zip(*lists, strict=True)):
                    if k in not_utf8:
                        yield Row(number, self.where(number), [], ("not UTF-8", "make the table again"))
                    else:
                        yield Row(number, self.where(number), values)
                    number += 1
        except (OSError, ValueError) as cause:
            raise DataError(f"{self.path}, after row {number}: cannot be read ({cause}); copy it again") from cause

    def where(self, number: int) -> str:
        return f"{self.path}, row {number}"

    def take(self, numbers: Sequence[int]) -> list[Any]:
        pa = require("pyarrow", extra="data", purpose="read Parquet files")
        schema = self._kept[0].schema if self._kept else self._file.schema_arrow
        table = pa.Table.from_batches(self._kept, schema=schema)
        return table.take(np.array(numbers, dtype=np.int64)).columns


class MemoryTable:
    """An Arrow table in memory, such as a data frame."""

    def __init__(self, table: Any, *, name: str) -> None:
        self.name = name
        self.columns: list[str] = table.column_names
        self.num_rows: int = table.num_rows
        self._table = table

    def rows(self, columns: Sequence[int]) -> Iterator[Row]:
        lists = [self._table.column(k).to_pylist() for k in columns]
        for number, values in enumerate(zip(*lists, strict=True)):
            yield Row(number, self.where(number), values)

    def where(self, number: int) -> str:
        return f"{self.name}, row {number}"

    def take(self, numbers: Sequence[int]) -> list[Any]:
        return self._table.take(np.array(numbers, dtype=np.int64)).columns


def _with_valid_text(batch: Any) -> tuple[Any, dict[str, set[int]]]:
    """The batch with text that every function of pyarrow takes, and by column the rows that were not UTF-8."""
    pa = require("pyarrow", extra="data", purpose="read Parquet files")
    invalid: dict[str, set[int]] = {}
    for place, field_ in enumerate(batch.schema):
        kind, column = field_.type, batch.column(place)
        is_view = pa.types.is_string_view(kind)
        if not (is_view or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            continue
        try:
            column.validate(full=True)
            texts = column.to_pylist() if is_view else None
        except pa.ArrowInvalid:
            raw = column.cast(pa.binary()).to_pylist()
            texts = [None if cell is None else cell.decode("utf-8", "replace") for cell in raw]
            invalid[field_.name] = {
                k for k, cell in enumerate(raw) if cell is not None and cell.decode("utf-8", "ignore").encode() != cell
            }
        if texts is not None:
            kind = pa.string() if is_view else kind
            batch = batch.set_column(place, pa.field(field_.name, kind), pa.array(texts, type=kind))
    return batch, invalid
