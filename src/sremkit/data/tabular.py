"""Tables with named columns, read row by row: CSV, TSV and Parquet."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from sremkit.data.pairs import Problems
from sremkit.errors import DataError
from sremkit.extras import require

OTHER_SEPARATORS = (";", "\t", "|")  # than a comma, in files called .csv
LONGEST_HEADER = 1 << 16  # bytes


class Row(NamedTuple):
    """One row of a table; `number` counts from 0 and counts bad rows too, so that it stays the same."""

    number: int
    where: str
    values: Sequence[object]


class Table(Protocol):
    """A file of rows under named columns."""

    columns: list[str]
    num_rows: int  # known after `rows` has run to its end

    def rows(self, columns: Sequence[int], problems: Problems) -> Iterator[Row]:
        """These columns of every good row."""


def open_table(path: Path, *, delimiter: str | None = None, quoting: bool | None = None) -> Table:
    """Open by suffix. A .csv file may quote its fields, and its header tells what separates them; in others
    tabs do, and quotes are text.
    """
    if path.suffix.lower() in (".parquet", ".pq"):
        return ParquetTable(path)
    tabs = path.suffix.lower() != ".csv"
    return TextTable(
        path,
        delimiter=delimiter or ("\t" if tabs else _separator_in_header(path)),
        quoting=not tabs if quoting is None else quoting,
    )


def _separator_in_header(path: Path) -> str:
    """A comma, unless the first line has none outside quotes and something else stands in its place."""
    try:
        with open(path, "rb") as file:
            header = file.readline(LONGEST_HEADER).decode("utf-8", errors="replace")
    except OSError:  # whoever reads the table says what is wrong with the file
        return ","
    bare = re.sub(r'"[^"]*"', "", header)
    if "," in bare:
        return ","
    likeliest = max(OTHER_SEPARATORS, key=bare.count)
    return likeliest if likeliest in bare else ","


class TextTable:
    """A CSV or TSV file in UTF-8 whose first line names the columns."""

    def __init__(self, path: Path, *, delimiter: str, quoting: bool) -> None:
        self.path = path
        self.num_rows = 0
        self.delimiter = delimiter
        self.quoting = quoting
        try:
            with open(path, "rb") as file:
                not_utf8: list[int] = []
                self.columns: list[str] = next(self._reader(file, not_utf8), [])
        except FileNotFoundError as cause:
            raise DataError(f"{path} does not exist; check the folder and the spelling") from cause
        except csv.Error as cause:
            raise DataError(f"{path}, line 1: the header cannot be read ({cause}); correct it") from cause
        if not_utf8:
            raise DataError(f"{path}, line 1: not UTF-8; save the file as UTF-8")
        if not self.columns:
            raise DataError(f"{path} is empty; its first line must name the columns")

    def rows(self, columns: Sequence[int], problems: Problems) -> Iterator[Row]:
        self.num_rows = 0
        not_utf8: list[int] = []
        with open(self.path, "rb") as file:
            reader = self._reader(file, not_utf8)
            next(reader)
            while True:
                where = f"{self.path}, line {reader.line_num + 1}"
                try:
                    fields = next(reader, None)
                except csv.Error as cause:
                    problems.found(
                        where, "not readable as a row", f"{cause}; look for a stray quotation mark"
                    )
                    self.num_rows += 1
                    continue
                if fields is None:
                    return
                if not fields:  # a blank line
                    continue
                self.num_rows += 1
                if not_utf8:
                    problems.found(f"{self.path}, line {not_utf8[0]}", "not UTF-8", "save the file as UTF-8")
                    not_utf8.clear()
                elif len(fields) != len(self.columns):
                    reason = f"{len(fields)} fields where the header has {len(self.columns)}"
                    problems.found(
                        where, reason, "add what is missing, or quote text that holds the separator"
                    )
                else:
                    yield Row(self.num_rows - 1, where, [fields[k] for k in columns])

    def _reader(self, file: Iterable[bytes], not_utf8: list[int]):
        return csv.reader(
            _decoded_lines(file, not_utf8),
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self.quoting else csv.QUOTE_NONE,
            strict=True,  # else a quotation mark that is never closed swallows the rest of the file
        )


def _decoded_lines(file: Iterable[bytes], not_utf8: list[int]) -> Iterator[str]:
    """Lines of text; the numbers of those that are not UTF-8 are appended to `not_utf8`."""
    for number, raw in enumerate(file, start=1):
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError:
            not_utf8.append(number)
            yield raw.decode("utf-8", errors="replace")


class ParquetTable:
    """A Parquet file, read in slices so that memory stays bounded."""

    ROWS_AT_ONCE = 10_000

    def __init__(self, path: Path) -> None:
        self.path = path
        parquet = require("pyarrow.parquet", extra="data", purpose="read Parquet files")
        try:
            self._file = parquet.ParquetFile(path)
        except FileNotFoundError as cause:
            raise DataError(f"{path} does not exist; check the folder and the spelling") from cause
        except (OSError, ValueError) as cause:
            raise DataError(
                f"{path} is not a readable Parquet file ({cause}); copy or make it again"
            ) from cause
        self.columns = list(self._file.schema_arrow.names)
        self.num_rows = self._file.metadata.num_rows

    def rows(self, columns: Sequence[int], problems: Problems) -> Iterator[Row]:
        names = [self.columns[k] for k in columns]
        number = 0
        try:
            for batch in self._file.iter_batches(self.ROWS_AT_ONCE, columns=list(dict.fromkeys(names))):
                lists = [batch.column(name).to_pylist() for name in names]
                for values in zip(*lists, strict=True):
                    yield Row(number, f"{self.path}, row {number}", values)
                    number += 1
        except (OSError, ValueError) as cause:
            raise DataError(
                f"{self.path}, after row {number}: cannot be read ({cause}); copy it again"
            ) from cause
