"""All parts as one table, streamed: no more than a row group is in memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sremkit.audit.by_shard.cut import ScoreCounts
from sremkit.audit.by_shard.plan import Plan
from sremkit.audit.table import IDENTITY, METADATA, PAIRS, VERDICT, arrow
from sremkit.errors import DataError
from sremkit.extras import require

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_ONCE = 65_536
Progress = Callable[[str, int, int], None]


@dataclass
class Merged:
    """The figures of the merged table."""

    line: float  # scores below it are called mismatches
    mismatches: int = 0
    wrong_expected: float = 0.0  # sum of 1 - score of these
    facts: dict[str, Any] = field(default_factory=dict)  # added up over the parts


def merge(
    plan: Plan,
    *,
    calls: bool,
    facts: dict[str, Any],
    each: Callable[[pa.Table, int, int], None],
    progress: Progress | None = None,
) -> Merged:
    """Write `pairs.parquet` from all parts.

    Args:
        calls: whether any pair may be called a mismatch.
        facts: where the pairs came from, for the table's metadata.
        each: is given every piece of the table, with its shard's number and its first row in the shard.
    """
    parquet = require("pyarrow.parquet", extra="audit", purpose="keep the verdicts in a table")
    counts = _count(plan, progress)
    merged = Merged(counts.line(plan.choice), facts=_added_up(plan))
    shape = _shape(plan, facts)
    partial = plan.out / f".partial-{PAIRS}"
    offsets = [0, 0]
    with parquet.ParquetWriter(partial, shape.schema) as writer:
        for number in range(len(plan.shards)):
            row = 0
            for piece in _pieces(plan.part(number)):
                piece = _numbered_on(shape.fit(piece), offsets)
                piece, wrong = _called(piece, merged.line if calls else -np.inf)
                merged.mismatches += len(wrong)
                merged.wrong_expected += float((1 - wrong).sum())
                writer.write_table(piece)
                each(piece, number, row)
                row += len(piece)
            groups = _judged(plan, number)["groups"]
            offsets = [offset + new for offset, new in zip(offsets, groups, strict=True)]
            _tell(progress, "merging", number + 1, len(plan.shards))
    partial.replace(plan.out / PAIRS)
    return merged


@dataclass
class Shape:
    """The columns of the merged table, and under which name each of the user's own is stored."""

    schema: pa.Schema
    own: dict[str, str]

    def fit(self, piece: pa.Table) -> pa.Table:
        """A piece of a part with all columns, in their order; what the part lacks is null."""
        pa = arrow()
        own_here = _own(piece.schema)
        stored = {self.own[name]: here for name, here in own_here.items()}
        columns = []
        for column in self.schema:
            name = stored.get(column.name, column.name)
            there = name in piece.column_names
            values = piece[name] if there else pa.nulls(len(piece))
            columns.append(_cast(values, column.type))
        return pa.table(columns, schema=self.schema)


def _shape(plan: Plan, facts: dict[str, Any]) -> Shape:
    """The joined columns of all parts.

    A column of the user's that is one of ours in one shard may be kept beside ours in another, where a few
    values differ; then it is kept beside ours for all.
    """
    pa = arrow()
    parquet = require("pyarrow.parquet", extra="audit", purpose="keep the verdicts in a table")
    types: dict[str, Any] = {}
    own: dict[str, str] = {}
    for number in range(len(plan.shards)):
        schema = parquet.read_schema(plan.part(number))
        for name, stored in _own(schema).items():
            if own.get(name) is None or own[name] in IDENTITY:
                own[name] = stored
        for column in schema:
            types[column.name] = _common_type(types.get(column.name, column.type), column.type)
    theirs = [name for name in types if name not in (*IDENTITY, *VERDICT)]
    columns = [
        (name, pa.string() if pa.types.is_null(types[name]) else types[name])
        for name in (*IDENTITY, *theirs, *VERDICT)
    ]
    metadata = {METADATA: json.dumps({"own": own, "source": facts}).encode()}
    return Shape(pa.schema(columns, metadata=metadata), own)


def _common_type(first: Any, second: Any) -> Any:
    """A type for values of both; where there is none, they become text, for hours of work must not fail at the end."""
    if first == second:
        return first
    pa = arrow()
    schemas = [pa.schema([("column", kind)]) for kind in (first, second)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return pa.string()


def _cast(values: Any, kind: Any) -> Any:
    pa = arrow()
    try:
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # a list, or a number in a string's place
        plain = [None if value is None else str(value) for value in values.to_pylist()]
        return pa.chunked_array([pa.array(plain, type=pa.string())]).cast(kind)


def _own(schema: pa.Schema) -> dict[str, str]:
    facts = (schema.metadata or {}).get(METADATA)
    return {} if facts is None else json.loads(facts)["own"]


def _pieces(path: Path) -> Iterator[pa.Table]:
    pa = arrow()
    parquet = require("pyarrow.parquet", extra="audit", purpose="keep the verdicts in a table")
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS_AT_ONCE):
            yield pa.Table.from_batches([batch], schema=file.schema_arrow)


def _count(plan: Plan, progress: Progress | None) -> ScoreCounts:
    parquet = require("pyarrow.parquet", extra="audit", purpose="keep the verdicts in a table")
    counts = ScoreCounts()
    for number in range(len(plan.shards)):
        scores = parquet.read_table(plan.part(number), columns=["mismatch_score"])["mismatch_score"]
        counts.add(scores.drop_null().cast("double").to_numpy())
        _tell(progress, "counting scores", number + 1, len(plan.shards))
    return counts


def _called(piece: pa.Table, line: float) -> tuple[pa.Table, np.ndarray]:
    """The piece with its mismatches called, and their scores; a pair without a score is neither."""
    pa = arrow()
    score = piece["mismatch_score"].to_numpy()  # NaN where there is none
    known = ~np.isnan(score.astype(np.float64))
    wrong = known & (np.where(known, score, np.inf) < line)
    place = piece.schema.get_field_index("is_mismatch")
    column = pa.array(wrong, mask=~known)
    return piece.set_column(place, piece.schema.field(place), column), score[wrong]


def _numbered_on(piece: pa.Table, offsets: list[int]) -> pa.Table:
    """Groups of duplicates are numbered within a shard; here they go on from the shards before it."""
    compute = require("pyarrow.compute", extra="audit", purpose="keep the verdicts in a table")
    for kind, offset in zip(("text", "image"), offsets, strict=True):
        place = piece.schema.get_field_index(f"duplicate_{kind}_group")
        field = piece.schema.field(place)
        shifted = compute.add(piece.column(place).cast("int64"), offset).cast(field.type)
        piece = piece.set_column(place, field, shifted)
    return piece


def _added_up(plan: Plan) -> dict[str, Any]:
    total: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    for number in range(len(plan.shards)):
        facts = _judged(plan, number)
        total.update({name: facts[name] for name in ("rows", "images", "judged")})
        total.update(dict(zip(("text", "image"), facts["duplicates"], strict=True)))
        problems.update(facts["problems"])
    return {**total, "problems": dict(problems.most_common())}


def _judged(plan: Plan, number: int) -> dict[str, Any]:
    facts = plan.judged(number)
    if facts is None:
        raise DataError(f"the part of shard {plan.shards[number].name} has gone; run the same command again")
    return facts


def _tell(progress: Progress | None, stage: str, done: int, total: int) -> None:
    if progress is not None:
        progress(stage, done, total)
