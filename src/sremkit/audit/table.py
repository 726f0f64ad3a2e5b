"""The table of an audit: the user's rows in their order, all of their columns, and the verdict on each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sremkit.audit.own_rows import NO_PAIR
from sremkit.audit.preparation import Judgeable
from sremkit.audit.sources import Source
from sremkit.audit.verdicts import NOBODY, Verdicts
from sremkit.data.pairs import Pairs
from sremkit.errors import DataError
from sremkit.extras import require

if TYPE_CHECKING:
    import pyarrow as pa

PAIRS = "pairs.parquet"
IDENTITY = ("id", "image", "text")
VERDICT = ("mismatch_score", "is_mismatch", "energy_i2t", "energy_t2i", "rank_i2t", "rank_t2i", "better_text",
           "better_text_id", "better_image", "fold", "duplicate_text_group", "duplicate_image_group",
           "problem")  # fmt: skip
OWN = "own_"  # put before a column of the user's whose name is one of ours
METADATA = b"sremkit"
ROWS_OF_A_GROUP = 65_536  # whoever streams the table holds one of these


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Groups of captions and of pictures that are nearly the same; -1 for one that stands alone."""

    text_group: np.ndarray  # (judged pairs,) int64
    image_group: np.ndarray  # (judged pairs,) int64, the group of the pair's picture


@dataclass(frozen=True, eq=False)
class BetterFits:
    """For each judged pair what would fit better; None where nothing does."""

    text: list[str | None]
    text_id: list[str | None]
    image: list[str | None]


def arrow() -> Any:
    """The package that holds tables."""
    return require("pyarrow", extra="audit", purpose="keep the verdicts in a table")


def build_table(
    source: Source,
    judgeable: Judgeable,
    verdicts: Verdicts,
    is_mismatch: np.ndarray,
    duplicates: Duplicates,
    better: BetterFits | None = None,
) -> pa.Table:
    """Put everything that is known of each row side by side; what is not known is null.

    Args:
        better: in words, where `verdicts` cannot name it because it is none of these pairs.
    """
    pa = arrow()
    identity = _identity(source)
    judged_of_row = _judged_of_row(source, judgeable)
    better = better or _better_of_these(judgeable.pairs, verdicts)
    verdict = _verdict_columns(verdicts, is_mismatch, duplicates, better, judged_of_row)
    verdict["problem"] = pa.array(_problem_sentences(source, judgeable), type=pa.string())
    own, names = _own_columns(source, identity)
    columns = {**{name: pa.array(identity[name], type=pa.string()) for name in IDENTITY}, **own, **verdict}
    facts = {"own": names, "source": source.facts}
    return pa.table(columns).replace_schema_metadata({METADATA: json.dumps(facts).encode()})


def was_judged(verdicts: Verdicts) -> np.ndarray:
    """Which pairs the judge has looked at: (m,) bool. Where the data are too few it looks at none."""
    return (verdicts.fold >= 0) & np.isfinite(verdicts.mismatch_score)


def write_table(table: pa.Table, path: Path) -> None:
    """Write Parquet in one step: the old file stays until the new one is complete."""
    parquet = require("pyarrow.parquet", extra="audit", purpose="keep the verdicts in a table")
    partial = path.with_name(f".partial-{path.name}")
    parquet.write_table(table, partial, row_group_size=ROWS_OF_A_GROUP)
    partial.replace(path)


def read_table(folder: Path) -> pa.Table:
    """The table of a finished audit."""
    parquet = require("pyarrow.parquet", extra="audit", purpose="keep the verdicts in a table")
    if not (folder / PAIRS).is_file():
        raise DataError(
            f"{folder} holds no finished audit (there is no {PAIRS} in it); make it with `srem audit`"
        )
    with damage_is_said(folder / PAIRS):
        return parquet.read_table(folder / PAIRS)


@contextmanager
def damage_is_said(path: Path) -> Iterator[None]:
    """Turns what Arrow says of a damaged table into a sentence that tells what to do."""
    try:
        yield
    except (OSError, ValueError, arrow().ArrowException) as cause:
        reason = str(cause).split("\n")[0]
        raise DataError(
            f"{path} is damaged ({reason}); the same `srem audit` command makes it again"
        ) from cause


def own_names(schema: pa.Schema) -> dict[str, str]:
    """The user's own columns in their order: own name -> name in the table."""
    return dict(_facts(schema)["own"])


def source_facts(schema: pa.Schema) -> dict[str, Any]:
    """Where the pairs came from."""
    return _facts(schema)["source"]


def _facts(schema: pa.Schema) -> dict[str, Any]:
    metadata = schema.metadata or {}
    if METADATA not in metadata:
        raise DataError("this table was not written by `srem audit`; audit the pairs first")
    return json.loads(metadata[METADATA])


def _identity(source: Source) -> dict[str, list[str | None]]:
    """Id, image and text of each row: the pair's, or what the user's columns say where there is no pair."""
    pairs, rows = source.pairs, source.rows
    columns: dict[str, list[str | None]] = {name: [None] * len(rows) for name in IDENTITY}
    for row in rows.problems:
        for name, column in rows.roles.items():
            columns[name][row] = _as_text(rows.columns[column][row])
    image_of_text = pairs.image_of_text.tolist()
    for row, k in enumerate(rows.pair_of_row.tolist()):
        if k != NO_PAIR:
            columns["id"][row] = pairs.pair_ids[k]
            columns["image"][row] = pairs.image_ids[image_of_text[k]]
            columns["text"][row] = pairs.texts[k] if source.has_texts else None
    return columns


def _own_columns(
    source: Source, identity: dict[str, list[str | None]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The user's columns, and the name under which each is stored."""
    pa = arrow()
    taken = {*IDENTITY, *VERDICT, *source.rows.columns}
    stored: dict[str, Any] = {}
    names: dict[str, str] = {}
    for own, values in source.rows.columns.items():
        column = pa.array(values, type=pa.string()) if isinstance(values, list) else values
        if own in IDENTITY and pa.types.is_string(column.type) and column.to_pylist() == identity[own]:
            names[own] = own  # ours holds the very same
            continue
        name = own
        while name in (*IDENTITY, *VERDICT) or (name != own and name in taken):
            name = OWN + name
        taken.add(name)
        stored[name], names[own] = column, name
    if not names:  # nothing but what the format has
        names = {name: name for name in IDENTITY}
    elif source.facts.get("format") != "table":
        names = {**{name: name for name in IDENTITY}, **names}
    return stored, names


def _judged_of_row(source: Source, judgeable: Judgeable) -> np.ndarray:
    """For each row its number among the judged pairs, or NO_PAIR."""
    judged_of_pair = np.full(len(source.pairs) + 1, NO_PAIR, dtype=np.int64)  # the last stands for no pair
    judged_of_pair[judgeable.pair_numbers] = np.arange(len(judgeable.pair_numbers))
    return judged_of_pair[source.rows.pair_of_row]


def _verdict_columns(
    verdicts: Verdicts,
    is_mismatch: np.ndarray,
    duplicates: Duplicates,
    better: BetterFits,
    judged_of_row: np.ndarray,
) -> dict[str, Any]:
    known, any_pair = was_judged(verdicts), np.ones(len(verdicts), dtype=bool)
    columns: dict[str, tuple[Sequence[Any] | np.ndarray, np.ndarray]] = {  # values, and where they are known
        "mismatch_score": (verdicts.mismatch_score.astype(np.float64), known),
        "is_mismatch": (is_mismatch, known),
        "energy_i2t": (verdicts.energy_i2t, known),
        "energy_t2i": (verdicts.energy_t2i, known),
        "rank_i2t": (verdicts.rank_i2t, known),
        "rank_t2i": (verdicts.rank_t2i, known),
        "better_text": (better.text, any_pair),
        "better_text_id": (better.text_id, any_pair),
        "better_image": (better.image, any_pair),
        "fold": (verdicts.fold, known),
        "duplicate_text_group": (duplicates.text_group, duplicates.text_group >= 0),
        "duplicate_image_group": (duplicates.image_group, duplicates.image_group >= 0),
    }
    return {name: _spread(values, there, judged_of_row) for name, (values, there) in columns.items()}


def _better_of_these(pairs: Pairs, verdicts: Verdicts) -> BetterFits:
    """Texts, ids and images of the better ones, all of them among these pairs; an empty text is none."""
    return BetterFits(
        [pairs.texts[k] or None if k != NOBODY else None for k in verdicts.better_text.tolist()],
        [pairs.pair_ids[k] if k != NOBODY else None for k in verdicts.better_text.tolist()],
        [pairs.image_ids[k] if k != NOBODY else None for k in verdicts.better_image.tolist()],
    )


def _spread(values: Sequence[Any] | np.ndarray, known: np.ndarray, judged_of_row: np.ndarray) -> Any:
    """One value a row from one a judged pair; null where the row was not judged or the value is not known."""
    pa = arrow()
    column = pa.array(values, type=pa.string()) if isinstance(values, list) else pa.array(values)
    rows = np.where((judged_of_row != NO_PAIR) & known[judged_of_row], judged_of_row, NO_PAIR)
    return column.take(pa.array(rows, mask=rows == NO_PAIR))


def _problem_sentences(source: Source, judgeable: Judgeable) -> list[str | None]:
    sentences: list[str | None] = [None] * len(source.rows)
    for row, problem in source.rows.problems.items():
        sentences[row] = problem.sentence
    for row, k in enumerate(source.rows.pair_of_row.tolist()):
        if k in judgeable.problems:
            sentences[row] = judgeable.problems[k].sentence
    return sentences


def _as_text(value: Any) -> str | None:
    plain = value.as_py() if hasattr(value, "as_py") else value
    return None if plain is None else str(plain).strip()
