"""The table of an audit: the input rows in their order, all their columns, and the verdict on each.

The file's metadata names the user's own columns and where the pairs came from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sremkit.audit.embed import EmbeddedPairs
from sremkit.audit.inputs import Source
from sremkit.audit.issues import ISSUES
from sremkit.audit.neighbors import NEIGHBORS
from sremkit.audit.scoring.threshold_curve import ThresholdCurve
from sremkit.audit.scoring.types import PairScores
from sremkit.config.aliases import AUDIT_COLUMNS, SUMMARY_KEYS
from sremkit.data.pairs import MISSING
from sremkit.errors import DataError
from sremkit.extras import require
from sremkit.io import atomic_write, check_version, read_json, read_json_or_empty

if TYPE_CHECKING:
    import pyarrow as pa

BEGUN, PAIRS, SUMMARY = "audit.json", "pairs.parquet", "summary.json"
VERSION = 2  # of an audit's folder, in audit.json; 0.1 wrote none
IDENTITY = ("id", "image", "text")
VERDICT = ("match_probability", "is_mismatch", "energy_i2t", "energy_t2i", "rank_i2t", "rank_t2i", "better_text",
           "better_text_id", "better_image", *NEIGHBORS, "fold", "duplicate_text_group", "duplicate_image_group",
           "expected_precision", "expected_recall", "reviewed", *ISSUES, "problem")  # fmt: skip
LABELS = {1: "match", 0: "mismatch"}  # values of the column `reviewed`, from decisions of people
OWN_PREFIX = "own_"  # of a column of the user's that has the name of one of ours
METADATA = b"sremkit"
#: Of values that are read again; tables of 0.1 lack some.
SUMMARY_TYPES: dict[str, Any] = {
    "key": str, "threshold": float | int, "expected_precision": float | int | None, "noise_rate": dict | None,
    "encoder": str | None, "settings": dict, "source": dict, "seconds": dict, "problems": dict, "note": str,
    "mismatches": int, "scored": int,
}  # fmt: skip
ROW_GROUP_SIZE = 65_536  # rows of a row group, which is the least that a reader holds in memory
CHUNK_ROWS = 16_384

Names = Sequence[str] | Mapping[int, str]


def arrow(module: str = "pyarrow") -> Any:
    """Import pyarrow, or a module of it."""
    return require(module, extra="audit", purpose="read and write the table of an audit")


class ResultTable:
    """The table of a finished audit, or a part of it, read whole, by column, by row or in chunks.

    Args:
        path: the folder of an audit, or a Parquet file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path if path.is_file() else path / PAIRS
        if not self.path.is_file():
            raise DataError(
                f"{self.path.parent} holds no finished audit (there is no {self.path.name} in it); make it with "
                "`srem audit`"
            )
        begun = self.path.parent / BEGUN
        check_version(read_json_or_empty(begun).get("version"), newest=VERSION, where=begun)
        with self._open() as file:
            self._stored = _stored_names(file.schema_arrow.names)
            self.schema: pa.Schema = arrow().schema(
                [file.schema_arrow.field(stored).with_name(name) for name, stored in self._stored.items()],
                metadata=file.schema_arrow.metadata,
            )
            groups = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
        self._group_starts = np.cumsum([0, *groups])

    def __len__(self) -> int:
        return int(self._group_starts[-1])

    def __contains__(self, column: str) -> bool:
        return column in self.schema.names

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the metadata says: "own", the user's columns -> their names here, and "source"."""
        metadata = self.schema.metadata or {}
        if METADATA not in metadata:
            raise DataError(f"{self.path} was not written by `srem audit`; audit the pairs first")
        return json.loads(metadata[METADATA])

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read some columns of all rows; by default all columns."""
        names = self.schema.names if columns is None else list(columns)
        with self._open() as file:
            stored = [self._stored[name] for name in names]
            return file.read(stored).select(stored).rename_columns(names)

    def chunks(self, columns: Sequence[str] | None = None, num_rows: int | None = None) -> Iterator[pa.Table]:
        """Iterate over the rows in order, so many at a time; by default with all columns."""
        names = self.schema.names if columns is None else list(columns)
        with self._open() as file:
            stored = [self._stored[name] for name in names]
            for batch in file.iter_batches(num_rows or CHUNK_ROWS, columns=list(dict.fromkeys(stored))):
                yield arrow().Table.from_batches([batch]).select(stored).rename_columns(names)

    def numbers(self, column: str) -> np.ndarray:
        """A column as (n,) float64; NaN for null, and everywhere if the table has no such column."""
        return as_floats(self.read([column])[column]) if column in self else np.full(len(self), np.nan)

    def flags(self, column: str) -> np.ndarray:
        """A column as (n,) bool; False for null, and everywhere if the table has no such column."""
        return np.nan_to_num(self.numbers(column)).astype(bool)

    def is_present(self, column: str) -> np.ndarray:
        """(n,) bool: where a column is not null; nowhere if the table has no such column."""
        if column not in self:
            return np.zeros(len(self), dtype=bool)
        return self.read([column])[column].is_valid().to_numpy(zero_copy_only=False)

    def rows(self, indices: Iterable[int], columns: Sequence[str]) -> dict[int, dict[str, Any]]:
        """Read single rows; columns that the table does not have are None."""
        wanted = np.unique(np.fromiter(indices, dtype=np.int64))
        known = [name for name in columns if name in self]
        stored = [self._stored[name] for name in known]
        found: dict[int, dict[str, Any]] = {int(row): dict.fromkeys(columns) for row in wanted}
        group_of = np.searchsorted(self._group_starts, wanted, side="right") - 1
        with self._open() as file:
            for group in np.unique(group_of) if known else ():
                here = wanted[group_of == group]
                part = file.read_row_group(int(group), columns=stored).select(stored).rename_columns(known)
                part = part.take(here - self._group_starts[group])
                for row, values in zip(here, part.to_pylist(), strict=True):
                    found[int(row)].update(values)
        return found

    @contextmanager
    def _open(self) -> Iterator[Any]:
        parquet = arrow("pyarrow.parquet")
        try:
            with parquet.ParquetFile(self.path) as file:
                yield file
        except (OSError, ValueError, arrow().ArrowException) as cause:
            reason = str(cause).split("\n")[0]
            raise DataError(
                f"{self.path} is damaged ({reason}); the same `srem audit` command makes it again"
            ) from cause


def _stored_names(names: Sequence[str]) -> dict[str, str]:
    """Today's name of each column -> its name in the file, which an earlier version may have written."""
    return {name if (new := AUDIT_COLUMNS.get(name, name)) in names else new: name for name in names}


def as_floats(column: Any) -> np.ndarray:
    """An Arrow column as float64, NaN for null."""
    return np.asarray(column.cast("double").to_numpy(), dtype=np.float64)


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with other values in one of its columns."""
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), values)


def write_table(table: pa.Table, path: Path) -> None:
    """Write Parquet atomically."""
    parquet = arrow("pyarrow.parquet")
    atomic_write(path, lambda partial: parquet.write_table(table, partial, row_group_size=ROW_GROUP_SIZE))


def read_summary(folder: Path) -> dict[str, Any]:
    """The figures of an audit, empty if it is not finished; keys of earlier versions get their new names."""
    path = folder / SUMMARY
    summary: Any = read_json(path) if path.is_file() else {}
    if not isinstance(summary, dict):
        raise DataError(f"{path} is not a JSON object; run the audit again, or remove the file")
    summary = {SUMMARY_KEYS.get(key, str(key)): value for key, value in summary.items()}
    for key in SUMMARY_TYPES.keys() & summary.keys():
        if not isinstance(summary[key], SUMMARY_TYPES[key]):
            raise DataError(
                f"{path} is damaged: '{key}' is {summary[key]!r:.40}; the same `srem audit` command makes it again"
            )
    return summary


def build_table(
    source: Source,
    embedded: EmbeddedPairs,
    scores: PairScores,
    is_mismatch: np.ndarray,
    duplicates: Mapping[str, np.ndarray],
    better: Mapping[str, list[str | None]] | None = None,
    *,
    issues: Mapping[str, list[Any]] | None = None,
    curve: ThresholdCurve | None = None,
    label: np.ndarray | None = None,
    explained: Mapping[str, list[str | None]] | None = None,
) -> pa.Table:
    """Join the input rows with their scores; what is not known of a row is null.

    Args:
        is_mismatch: (m,) bool for the m embedded pairs.
        duplicates: the columns duplicate_text_group and duplicate_image_group, (m,) int64 each.
        better: the columns better_text, better_text_id and better_image; by default those of `scores`.
        issues: the columns of `ISSUES`, a value for each embedded pair; null without them.
        explained: the columns of `NEIGHBORS`, a value for each embedded pair; null without them.
        curve: gives expected precision and recall where each pair is the last one flagged; null without it.
        label: (m,) int64, decisions of people that the scores use: 1 match, 0 mismatch, MISSING none.
    """
    pa = arrow()
    rows, pairs = source.rows, embedded.pairs
    embedded_of_pair = np.full(len(source.pairs) + 1, MISSING)  # the last is for rows without a pair
    embedded_of_pair[embedded.pair_numbers] = np.arange(len(embedded.pair_numbers))
    embedded_of_row = embedded_of_pair[rows.pair_of_row]

    def spread(values: Any, known: np.ndarray, type: Any = None) -> Any:
        """From one value for each embedded pair to one for each row; null where it is not known."""
        column = pa.array(values, type=type or pa.string()) if isinstance(values, list) else pa.array(values)
        taken = np.where((embedded_of_row != MISSING) & known[embedded_of_row], embedded_of_row, MISSING)
        return column.take(pa.array(taken, mask=taken == MISSING))

    better = better or name_better(scores, pairs.texts, pairs.pair_ids, pairs.image_ids)
    scored, any_pair = scores.is_scored, np.ones(len(scores), dtype=bool)
    measured = ("energy_i2t", "energy_t2i", "rank_i2t", "rank_t2i")
    verdict = {
        "match_probability": spread(scores.match_prob.astype(np.float64), scored),
        "is_mismatch": spread(is_mismatch, scored),
        **{name: spread(getattr(scores, name), scored) for name in measured},
        **{name: spread(names, any_pair) for name, names in better.items()},
        **{
            name: spread([None] * len(scores) if explained is None else explained[name], any_pair) for name in NEIGHBORS
        },
        "fold": spread(scores.fold, scored),
        **{name: spread(groups, groups != MISSING) for name, groups in duplicates.items()},
    }
    precision, recall = (
        np.full((2, len(scores)), np.nan) if curve is None else curve.at(np.where(scored, scores.match_prob, np.nan))
    )
    verdict["expected_precision"] = spread(precision, np.isfinite(precision))
    verdict["expected_recall"] = spread(recall, np.isfinite(recall))
    labels: list[str | None] = [None] * len(scores) if label is None else [LABELS.get(k) for k in label.tolist()]
    verdict["reviewed"] = spread(labels, any_pair)
    for name, kind in ISSUES.items():
        values = [None] * len(scores) if issues is None else issues[name]
        verdict[name] = spread(values, any_pair, pa.type_for_alias(kind))
    messages = {row: problem.message for row, problem in rows.problems.items()}
    messages |= {
        row: embedded.problems[k].message for row, k in enumerate(rows.pair_of_row.tolist()) if k in embedded.problems
    }
    verdict["problem"] = pa.array(map(messages.get, range(len(rows))), type=pa.string())
    identity = _identity(source)
    own, names = _own_columns(source, identity)
    columns = {**{name: pa.array(identity[name], type=pa.string()) for name in IDENTITY}, **own, **verdict}
    facts = {"own": names, "source": source.facts, "roles": rows.roles}
    return pa.table(columns).replace_schema_metadata({METADATA: json.dumps(facts).encode()})


def name_better(scores: PairScores, captions: Names, pair_ids: Names, image_ids: Names) -> dict[str, list[str | None]]:
    """The columns of texts, ids and images that fit better; None where nothing does, or where a text is empty."""
    texts, images = scores.better_text.tolist(), scores.better_image.tolist()
    return {
        "better_text": [None if k == MISSING else captions[k] or None for k in texts],
        "better_text_id": [None if k == MISSING else pair_ids[k] for k in texts],
        "better_image": [None if k == MISSING else image_ids[k] for k in images],
    }


def _identity(source: Source) -> dict[str, list[str | None]]:
    """Id, image and text of each row: the pair's, or the user's columns where there is no pair."""
    pairs, rows = source.pairs, source.rows
    columns: dict[str, list[str | None]] = {name: [None] * len(rows) for name in IDENTITY}
    for row in rows.problems:
        for name, column in rows.roles.items():
            value = rows.columns[column][row]
            plain = value.as_py() if hasattr(value, "as_py") else value
            columns[name][row] = None if plain is None else str(plain).strip()
    image_of_text = pairs.image_of_text.tolist()
    for row, k in enumerate(rows.pair_of_row.tolist()):
        if k != MISSING:
            columns["id"][row] = pairs.pair_ids[k]
            columns["image"][row] = pairs.image_ids[image_of_text[k]]
            columns["text"][row] = pairs.texts[k] if source.has_texts else None
    return columns


def _own_columns(source: Source, identity: dict[str, list[str | None]]) -> tuple[dict[str, Any], dict[str, str]]:
    """The user's columns, and the name under which each is stored."""
    pa = arrow()
    taken = {*IDENTITY, *VERDICT, *source.rows.columns}
    stored: dict[str, Any] = {}
    names: dict[str, str] = {}
    for own, values in source.rows.columns.items():
        column = pa.array(values, type=pa.string()) if isinstance(values, list) else values
        if own in IDENTITY and pa.types.is_string(column.type) and column.to_pylist() == identity[own]:
            names[own] = own  # equal to ours
            continue
        name = own
        while name in (*IDENTITY, *VERDICT) or (name != own and name in taken):
            name = OWN_PREFIX + name
        taken.add(name)
        stored[name], names[own] = column, name
    if source.facts.get("format") not in ("table", "frame", "dataset") or not names:
        names = {**{name: name for name in IDENTITY}, **names}
    return stored, names
