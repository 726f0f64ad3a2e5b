"""The end of a sharded audit: all parts become one table with flagged mismatches, a report and a summary.

The parts are streamed: one row group is in memory at a time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sremkit.audit.audit import Audit
from sremkit.audit.filtered import filter_note, filtered_at
from sremkit.audit.issues import ISSUES
from sremkit.audit.report import write_report
from sremkit.audit.result_table import (
    IDENTITY,
    METADATA,
    PAIRS,
    ROW_GROUP_SIZE,
    SUMMARY,
    VERDICT,
    ResultTable,
    arrow,
    as_floats,
    with_column,
    write_table,
)
from sremkit.audit.scoring.cross_fit import Progress
from sremkit.audit.scoring.threshold_curve import ThresholdCurve
from sremkit.audit.sharded.plan import ShardPlan
from sremkit.audit.sharded.sample import SampleModel
from sremkit.audit.sharded.shard import open_pairs
from sremkit.audit.summary import curve_points, join_notes, rate_facts, versions
from sremkit.errors import DataError
from sremkit.io import atomic_write, write_json

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL.Image import Image

MAX_PAGE_ROWS = 100_000
OPEN_SHARDS = 4


def merge(plan: ShardPlan, progress: Progress | None = None) -> dict[str, Any]:
    """Write `pairs.parquet` and `report.html`, and return the summary."""
    model = SampleModel.load(plan.model, plan.key)
    rate, near = model.scorer.calibration.noise_rate, model.scorer.calibration.near
    total, problems = Counter[str](), Counter[str]()
    groups = []
    for number, shard in enumerate(plan.shards):
        facts = plan.scored(number)
        if facts is None:
            raise DataError(f"the part of shard {shard.name} is missing; run the same command again")
        total.update({name: facts[name] for name in ("rows", "images", "scored")})
        total.update({f"issue/{name}": count for name, count in facts.get("issues", {}).items()})
        total.update(dict(zip(("text", "image"), facts["duplicates"], strict=True)))
        problems.update(facts["problems"])
        groups.append(facts["groups"])
    cutoff = plan.cutoff.cutoff(lambda: _scores(plan)) if plan.cutoff.applies(rate) else -np.inf
    curve = None if rate is None else ThresholdCurve(_scores(plan))
    source = _source(plan)
    before = filtered_at(Path(source["path"])) or filtered_at(plan.shards[0].path) or None
    missing = () if source["format"] == "embeddings" else ("pooled", "sentences")
    excerpt = Excerpt(total["rows"])
    flagged, expected = _write_merged(plan, groups, cutoff, curve, source, excerpt, progress)
    summary = {
        "pairs": total["rows"],
        "images": total["images"],
        "scored": total["scored"],
        "mismatches": flagged,
        "expected_precision": expected / flagged if rate is not None and flagged else None,
        **rate_facts(rate, near, scored=total["scored"], flagged=flagged, expected_wrong=expected, before=before),
        "note": join_notes(model.scorer.calibration.note, filter_note(before) if before else ""),
        "problems": dict(problems.most_common()),
        "duplicates": {"text": total["text"], "image": total["image"]},
        "candidates": model.scorer.candidates,
        "key": plan.key,
        "seed": plan.settings.seed,
        "cutoff": plan.cutoff.as_dict(),
        "threshold": float(np.clip(cutoff, 0, 1)),
        "curve": curve_points(curve, rate, near, scored=total["scored"]),
        "separation": model.scorer.calibration.separation,
        "issues": {name: total[f"issue/{name}"] for name in ISSUES},
        "sharded": {"shards": len(plan.shards), "train_pairs": model.sampled, "cutoff": float(np.clip(cutoff, 0, 1))},
        "settings": {"seed": plan.settings.seed, **plan.encoders.describe(missing)},
        "encoder": plan.encoders.folder,
        "source": source,
        "versions": versions(),
    }
    _write_page(plan, excerpt, summary)
    return summary


def _write_merged(
    plan: ShardPlan,
    groups: list[list[int]],
    cutoff: float,
    curve: ThresholdCurve | None,
    source: dict[str, Any],
    excerpt: Excerpt,
    progress: Progress | None,
) -> tuple[int, float]:
    """Write the merged table; return the number of flagged pairs, and of expected mismatches among them.

    Args:
        groups: number of groups of near-duplicate captions and images in each shard.
        cutoff: scores below it are flagged.
        curve: expected precision and recall over the threshold; None where scores are ranks.
    """
    schema, own = _layout(plan, source)
    flagged, expected = 0, 0.0

    def write(path: Path) -> None:
        nonlocal flagged, expected
        offsets = [0, 0]  # groups in the shards before
        with arrow("pyarrow.parquet").ParquetWriter(path, schema) as writer:
            for number in range(len(plan.shards)):
                row = 0
                part = ResultTable(plan.part(number))
                stored = {own[name]: here for name, here in _own_columns(part).items()}
                for chunk in part.chunks(num_rows=ROW_GROUP_SIZE):
                    chunk = _renumber(_fit(chunk, schema, stored), offsets)
                    score = as_floats(chunk["match_probability"])
                    is_mismatch = score < cutoff  # False for NaN
                    if curve is not None:
                        for name, values in zip(
                            ("expected_precision", "expected_recall"), curve.at(score), strict=True
                        ):
                            chunk = with_column(chunk, name, arrow().array(values, mask=np.isnan(values)))
                    chunk = with_column(chunk, "is_mismatch", arrow().array(is_mismatch, mask=np.isnan(score)))
                    flagged += int(is_mismatch.sum())
                    expected += float((1 - score[is_mismatch]).sum())
                    writer.write_table(chunk)
                    excerpt.add(chunk, number, row)
                    row += len(chunk)
                offsets = [offset + new for offset, new in zip(offsets, groups[number], strict=True)]
                if progress is not None:
                    progress("merging", number + 1, len(plan.shards))

    atomic_write(plan.out / PAIRS, write)
    return flagged, expected


def _layout(plan: ShardPlan, source: dict[str, Any]) -> tuple[pa.Schema, dict[str, str]]:
    """The columns of all parts, and the name under which each of the user's columns is stored.

    A column of the user's may equal ours in one shard and be stored apart in another, where some values differ; then
    it is stored apart for all.
    """
    pa = arrow()
    types: dict[str, Any] = {}
    own: dict[str, str] = {}
    roles: dict[str, str] = {}
    for number in range(len(plan.shards)):
        part = ResultTable(plan.part(number))
        roles |= part.facts.get("roles", {}) if METADATA in (part.schema.metadata or {}) else {}
        for name, stored in _own_columns(part).items():
            if own.get(name) is None or own[name] in IDENTITY:
                own[name] = stored
        for column in part.schema:
            types[column.name] = _common_type(types.get(column.name, column.type), column.type)
    theirs = [name for name in types if name not in (*IDENTITY, *VERDICT)]
    known = {name: kind for name, kind in types.items() if not pa.types.is_null(kind)}
    columns = [(name, known.get(name, pa.string())) for name in (*IDENTITY, *theirs, *VERDICT)]
    facts = {"own": own, "source": source, "roles": roles}
    return pa.schema(columns, metadata={METADATA: json.dumps(facts).encode()}), own


def _own_columns(part: ResultTable) -> dict[str, str]:
    """The user's columns in a part; none if no row of the shard could be read."""
    return part.facts["own"] if METADATA in (part.schema.metadata or {}) else {}


def _fit(chunk: pa.Table, schema: pa.Schema, stored: dict[str, str]) -> pa.Table:
    """Give a chunk all columns in order, null where it has none; `stored` are other names of columns in the chunk."""
    pa = arrow()
    columns = []
    for column in schema:
        name = stored.get(column.name, column.name)
        values = chunk[name] if name in chunk.column_names else pa.nulls(len(chunk))
        columns.append(_cast(values, column.type))
    return pa.table(columns, schema=schema)


def _common_type(first: Any, second: Any) -> Any:
    """A type for values of both; text if there is none, so that hours of work do not fail at the end."""
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
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # such as a list where others have text
        plain = [None if value is None else str(value) for value in values.to_pylist()]
        return pa.chunked_array([pa.array(plain, type=pa.string())]).cast(kind)


def _scores(plan: ShardPlan) -> Iterator[np.ndarray]:
    """The scores of all parts, one part at a time."""
    for number in range(len(plan.shards)):
        score = ResultTable(plan.part(number)).numbers("match_probability")
        yield score[np.isfinite(score)]


def _renumber(chunk: pa.Table, offsets: list[int]) -> pa.Table:
    """Number the groups of near-duplicates, which count from 0 in each shard, through all shards."""
    compute = arrow("pyarrow.compute")
    for name, offset in zip(("duplicate_text_group", "duplicate_image_group"), offsets, strict=True):
        shifted = compute.add(chunk[name].cast("int64"), offset)
        chunk = with_column(chunk, name, shifted.cast(chunk.schema.field(name).type))
    return chunk


def _source(plan: ShardPlan) -> dict[str, Any]:
    first = plan.shards[0]
    format = "embeddings" if first.text_path is not None else plan.format
    format = format or ("webdataset" if first.path.suffix.lower() == ".tar" else "table")
    options = {name: str(value) for name, value in plan.options.items()}
    path = str(first.path.absolute().parent)
    return {"path": path, "format": format, "split": plan.split, "options": options}


class Excerpt:
    """Every k-th row of the table, and where it comes from: the report of a large audit shows these."""

    def __init__(self, num_rows: int) -> None:
        self.step = max(-(-num_rows // MAX_PAGE_ROWS), 1)
        self._seen = 0
        self._chunks: list[pa.Table] = []
        self._places: list[np.ndarray] = []  # (k, 2): number of the shard, row in it

    def add(self, chunk: pa.Table, number: int, first_row: int) -> None:
        rows = np.arange(-self._seen % self.step, len(chunk), self.step)
        self._seen += len(chunk)
        if len(rows):
            self._chunks.append(chunk.take(rows))
            self._places.append(np.stack([np.full(len(rows), number), first_row + rows], axis=1))

    def table(self) -> pa.Table:
        return arrow().concat_tables(self._chunks)

    def places(self) -> np.ndarray:
        return np.concatenate(self._places)


def _write_page(plan: ShardPlan, excerpt: Excerpt, summary: dict[str, Any]) -> None:
    """Write report.html, with a note if it shows only some of the rows."""
    folder = plan.out / "page"
    table, places = excerpt.table(), excerpt.places()
    if excerpt.step > 1:
        note = f"examples, duplicates and histograms are of {len(table):,} rows, one of every {excerpt.step}"
        summary = {**summary, "note": "; ".join(s for s in (summary["note"], note) if s)}
    write_json(folder / SUMMARY, summary)
    write_table(table, folder / PAIRS)

    @lru_cache(maxsize=OPEN_SHARDS)
    def open_audit(number: int) -> Audit | None:
        try:
            return Audit(open_pairs(plan, number))
        except DataError:
            return None

    def image_of(row: int) -> Image | None:
        audit = open_audit(int(places[row, 0]))
        return None if audit is None else audit.image_of(int(places[row, 1]))

    has_images = plan.shards[0].text_path is None
    write_report(folder, image_of=image_of if has_images else None, out=plan.out / "report.html")
