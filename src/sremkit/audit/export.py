"""What comes out of an audit: the pairs worth keeping, in the form that the next tool reads."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sremkit.audit.shards import Counts, copy_shards, uids_in_shards
from sremkit.audit.stages import Choice
from sremkit.audit.table import own_names, read_table, source_facts, write_table
from sremkit.data.keep_list import keep_list_lines
from sremkit.errors import DataError, UserError

if TYPE_CHECKING:
    import pyarrow as pa

Which = Literal["keep", "drop"]
UID = re.compile(r"[0-9a-fA-F]{32}")
UID_DTYPE = np.dtype("u8,u8")  # 128 bits as DataComp stores them: the first 16 hex digits, then the others


def export(
    folder: str | Path,
    out: str | Path,
    *,
    what: str = "keep-list",
    which: Which = "keep",
    choice: Choice | None = None,
    split: str | None = None,
    overwrite: bool = False,
) -> Counts:
    """Write the pairs that are worth keeping, or the others.

    A pair is kept when it was not called a mismatch and nothing kept it from being judged.

    Args:
        folder: of a finished audit.
        what: one of `EXPORTS`.
        which: "drop" for the pairs that are not kept.
        choice: in the place of the one that the audit was made with.
        split: only the pairs of this one, where the data have splits.
    """
    if what not in EXPORTS:
        raise UserError(f"there is no export called '{what}'; choose from: {', '.join(EXPORTS)}")
    out, table = Path(out), read_table(Path(folder))
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists already; name another file, or remove it first")
    chosen = _chosen_rows(table, which, choice, split)
    if not chosen.any():
        raise DataError(
            f"there is nothing to write: no pair is to be {'kept' if which == 'keep' else 'dropped'}"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    left_out = EXPORTS[what](table.filter(chosen), out)
    return Counts(written=int(chosen.sum()) - left_out, of=len(table), left_out=left_out)


def kept_rows(table: pa.Table, choice: Choice | None = None) -> np.ndarray:
    """Which rows of an audit's table are worth keeping: (rows,) bool."""
    usable = np.array([problem is None for problem in table["problem"].to_pylist()], dtype=bool)
    if choice is None:
        wrong = np.array([bool(value) for value in table["is_mismatch"].to_pylist()], dtype=bool)
    else:
        wrong = choice.mismatches(np.array(table["mismatch_score"].to_numpy(), dtype=np.float64))
    return usable & ~wrong


def _chosen_rows(table: pa.Table, which: Which, choice: Choice | None, split: str | None) -> np.ndarray:
    kept = kept_rows(table, choice)
    chosen = kept if which == "keep" else ~kept
    if split is not None:
        name = own_names(table).get("split")
        if name is None:
            raise UserError("these pairs have no column 'split'; leave --split away")
        chosen = chosen & np.array([value == split for value in table[name].to_pylist()])
    return chosen


def _write_keep_list(rows: pa.Table, out: Path) -> int:
    ids = [pair_id for pair_id in rows["id"].to_pylist() if pair_id is not None]
    _write_lines(out, lambda file: file.writelines(keep_list_lines(ids)))
    return len(rows) - len(ids)


def _write_csv(rows: pa.Table, out: Path) -> int:
    names = own_names(rows)
    columns = [rows[name].to_pylist() for name in names.values()]

    def write(file: Any) -> None:
        writer = csv.writer(
            file, delimiter="\t" if out.suffix.lower() == ".tsv" else ",", lineterminator="\n"
        )
        writer.writerow(names)
        writer.writerows([_cell(value) for value in row] for row in zip(*columns, strict=True))

    _write_lines(out, write)
    return 0


def _write_parquet(rows: pa.Table, out: Path) -> int:
    names = own_names(rows)
    own = rows.select(list(names.values())).rename_columns(list(names))
    write_table(own.replace_schema_metadata(None), out)
    return 0


def _write_shards(rows: pa.Table, out: Path) -> int:
    if source_facts(rows).get("format") != "webdataset":
        raise UserError(
            "only pairs that came from tar shards can be written as tar shards; choose csv or parquet"
        )
    keys: dict[str, set[str]] = {}
    for shard, key in zip(rows["shard"].to_pylist(), rows["id"].to_pylist(), strict=True):
        if shard is not None:
            keys.setdefault(shard, set()).add(key)
    return copy_shards(keys, out)


def _write_uids(rows: pa.Table, out: Path) -> int:
    uids = _uids(rows)
    bad = next((uid for uid in uids if not isinstance(uid, str) or not UID.fullmatch(uid)), "")
    if bad != "":
        raise DataError(f"the uid {bad!r:.60} does not consist of 32 hex digits, as DataComp's do")
    numbers = np.array([(int(uid[:16], 16), int(uid[16:], 16)) for uid in uids], dtype=UID_DTYPE)
    numbers.sort()
    partial = out.with_name(f".partial-{out.name}.npy")  # np.save puts .npy behind any other ending
    np.save(partial, numbers, allow_pickle=False)
    partial.replace(out)
    return 0


def _uids(rows: pa.Table) -> list[Any]:
    """DataComp's 128-bit ids: in a column 'uid', as the pairs' own ids, or in the .json beside each picture."""
    name = own_names(rows).get("uid")
    if name is not None:
        return rows[name].to_pylist()
    ids = rows["id"].to_pylist()
    if all(pair_id is not None and UID.fullmatch(pair_id) for pair_id in ids):
        return ids
    if source_facts(rows).get("format") == "webdataset":
        return uids_in_shards(rows["shard"].to_pylist(), ids)
    raise DataError(
        "these pairs have no DataComp uids: there is no column 'uid', and their ids are not 32 hex digits, "
        f"such as '{ids[0]}'"
    )


def _write_lines(out: Path, write: Callable[[Any], None]) -> None:
    partial = out.with_name(f".partial-{out.name}")
    with partial.open("w", encoding="utf-8", newline="") as file:
        write(file)
    partial.replace(out)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


EXPORTS: dict[str, Callable[[Any, Path], int]] = {
    "keep-list": _write_keep_list,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "shards": _write_shards,
    "uids": _write_uids,
}
