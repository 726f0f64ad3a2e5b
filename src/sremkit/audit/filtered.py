"""Pairs that an audit has filtered before: exports carry the fact, and the next audit reads it.

What an audit keeps holds the mismatches that it could not find. A second audit by the same vectors cannot find them
either: it would call the collection clean. So an export of the pairs to keep carries how many pairs were dropped and
how many wrong ones are probably left, in a file next to it (NAME.audit.json), and in the metadata of a Parquet file. A
CSV is recognised by its columns as well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sremkit.audit.result_table import arrow
from sremkit.errors import DataError
from sremkit.io import read_json_or_empty, write_json

if TYPE_CHECKING:
    from sremkit.audit.inputs import Source
    from sremkit.audit.scoring.remaining_mismatches import Remaining

FILTER_KEY = b"sremkit.filtered"
FILTER_SUFFIX = ".audit.json"
FILTER_FILE = "filtered.json"  # in an exported folder
VERDICT_COLUMNS = ("verdict", "audit_verdict")
UNKNOWN_SHARE = 1.0  # of wrong pairs, where the audit before did not say


def filter_facts(rows: int, kept: int, left: Remaining | None) -> dict[str, Any]:
    """What an export of the pairs to keep says of itself.

    Args:
        rows: of the audited collection; `kept` of them are exported.
    """
    known = {} if left is None or left.kept == 0 else {"left": vars(left)}
    return {"filtered_by": "srem audit", "rows": rows, "kept": kept, **known}


def write_filter_facts(out: Path, facts: dict[str, Any]) -> None:
    """Write the facts next to an exported file, or into an exported folder."""
    write_json(out / FILTER_FILE if out.is_dir() else Path(f"{out}{FILTER_SUFFIX}"), facts)


def filtered_before(source: Source) -> dict[str, Any] | None:
    """The facts of the audit by which these pairs were filtered, or None if nothing says that they were."""
    path = source.facts.get("path")
    if path is not None and (facts := filtered_at(Path(path))):
        return facts
    for name in VERDICT_COLUMNS:
        values = source.rows.columns.get(name)
        if values is not None and "match_probability" in "".join(source.rows.columns):
            plain = values if isinstance(values, list) else values.to_pylist()
            if plain and set(plain) == {"keep"}:
                return {"filtered_by": "srem audit", "kept": len(plain)}
    return None


def filtered_at(path: Path) -> dict[str, Any]:
    """The facts that an export carries in its metadata or in a file next to it; empty if it carries none."""
    for file in (Path(f"{path}{FILTER_SUFFIX}"), path / FILTER_FILE):
        if facts := read_json_or_empty(file):
            return facts
    return _parquet_facts(path)


def share_left_before(facts: dict[str, Any] | None) -> float | None:
    """The largest share of wrong pairs that the audit before may have left; None if there was none."""
    if not facts:
        return None
    left = facts.get("left")
    return UNKNOWN_SHARE if not left or not left.get("kept") else float(left["high"]) / float(left["kept"])


def filter_note(facts: dict[str, Any]) -> str:
    """A sentence for people: what a low noise rate of filtered pairs does not mean."""
    dropped = f" {facts['rows'] - facts['kept']:,} of {facts['rows']:,} rows were dropped" if "rows" in facts else ""
    left = facts.get("left")
    wrong = ""
    if left:
        wrong = f", and {left['low']:,.0f} to {left['high']:,.0f} of the kept pairs were probably still wrong"
    return (
        f"these pairs were filtered by an audit before{':' if dropped or wrong else ''}{dropped}{wrong}. The "
        "mismatches that it could not find look right to this audit too, so a low noise rate does not mean that the "
        "pairs are right"
    )


def _parquet_facts(path: Path) -> dict[str, Any]:
    if path.suffix.lower() not in (".parquet", ".pq") or not path.is_file():
        return {}
    try:
        metadata = arrow("pyarrow.parquet").read_schema(path).metadata or {}
    except (OSError, ValueError, DataError):
        return {}
    return json.loads(metadata[FILTER_KEY]) if FILTER_KEY in metadata else {}
