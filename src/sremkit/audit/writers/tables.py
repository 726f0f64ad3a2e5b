"""Tables with the user's columns: CSV with verdicts, sorted by score without all rows in memory; and Parquet."""

from __future__ import annotations

import csv
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.audit.filtered import FILTER_KEY
from sremkit.audit.result_table import arrow, as_floats
from sremkit.audit.selection import VERDICT_COLUMN, Selection

AUDIT_PREFIX = "audit_"  # of a column of ours whose name a column of the user's has
#: Cells that spreadsheets compute; numbers with a sign are none.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
BUCKET_ROWS = 20_000  # rows of a CSV file that are sorted in memory


def write_csv(rows: Selection, out: Path) -> None:
    """The user's columns with score, verdict and better caption, the lowest score first, rows without a score last."""
    with out.open("w", encoding="utf-8", newline="") as file:
        delimiter = "\t" if out.suffix.lower() == ".tsv" else ","
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        ours = ["match_probability", "verdict", "better_text", *([] if rows.select == "keep" else ["problem"])]
        writer.writerow([*rows.own, *(name if name not in rows.own else AUDIT_PREFIX + name for name in ours)])
        stored = [VERDICT_COLUMN if name == "verdict" else name for name in ours]
        columns = [*rows.own.values(), *stored]
        present = list(dict.fromkeys(name for name in columns if name == VERDICT_COLUMN or name in rows.table))

        def cells() -> Iterator[list[Any]]:
            for chunk in rows.chunks(present):
                values = {name: chunk[name].to_pylist() for name in present}
                lists = [values.get(name, [None] * len(chunk)) for name in columns]
                yield from ([_cell(value, rows.formulas) for value in row] for row in zip(*lists, strict=True))

        scores = [as_floats(chunk["match_probability"]) for chunk in rows.chunks(["match_probability"])]
        writer.writerows(sort_rows(cells(), np.concatenate(scores)))


def sort_rows(rows: Iterable[list[Any]], keys: np.ndarray) -> Iterator[list[Any]]:
    """The rows in the order of their keys, NaN last; they wait in files, and some thousands are in memory at a time."""
    rank = np.empty(len(keys), dtype=np.int64)
    rank[np.argsort(keys, kind="stable")] = np.arange(len(keys))
    with tempfile.TemporaryDirectory() as folder:
        waiting: dict[int, list[tuple[int, list[Any]]]] = defaultdict(list)
        for number, row in enumerate(rows):
            waiting[int(rank[number]) // BUCKET_ROWS].append((int(rank[number]), row))
            if number % BUCKET_ROWS == BUCKET_ROWS - 1:
                _append(Path(folder), waiting)
        _append(Path(folder), waiting)
        for bucket in range(-(-len(keys) // BUCKET_ROWS)):
            with (Path(folder) / str(bucket)).open(encoding="utf-8") as file:
                members = [json.loads(line) for line in file]
            yield from (row for _, row in sorted(members, key=itemgetter(0)))


def _append(folder: Path, waiting: dict[int, list[tuple[int, list[Any]]]]) -> None:
    for bucket, members in waiting.items():
        with (folder / str(bucket)).open("a", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(member, default=str)}\n" for member in members)
    waiting.clear()


def _cell(value: Any, formulas: bool) -> Any:
    if value is None:
        return ""
    if isinstance(value, str) and not formulas and value.startswith(FORMULA_STARTS) and not NUMBER.fullmatch(value):
        return f"'{value}"
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


def write_parquet(rows: Selection, out: Path) -> None:
    fields = [rows.table.schema.field(stored).with_name(name) for name, stored in rows.own.items()]
    facts = {} if rows.filtered is None else {FILTER_KEY: json.dumps(rows.filtered).encode()}
    schema = arrow().schema(fields, metadata=facts or None)
    with arrow("pyarrow.parquet").ParquetWriter(out, schema) as writer:
        for chunk in rows.chunks(list(rows.own.values())):
            writer.write_table(chunk.rename_columns(list(rows.own)).cast(schema))
