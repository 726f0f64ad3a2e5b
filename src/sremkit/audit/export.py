"""What comes out of an audit: the pairs worth keeping, in the form that the next tool reads.

The table is read piece by piece and written piece by piece, so that memory does not grow with the number of pairs.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.audit.shards import Counts, copy_shards, uids_in_shards
from sremkit.audit.stages import SUMMARY, Choice, facts_in
from sremkit.audit.streamed_table import ChosenRows, StreamedTable, Which
from sremkit.audit.table import arrow
from sremkit.data.keep_list import keep_list_lines
from sremkit.errors import DataError, UserError
from sremkit.extras import require

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
    out, table = Path(out), StreamedTable(Path(folder))
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists already; name another file, or remove it first")
    if choice is not None and not choice.calls_any(_noise_rate(Path(folder))):
        raise UserError(
            "the audit could not tell how many pairs are wrong, so its scores only put them in order and promise no "
            "precision; choose by --fraction or --threshold (fraction=, threshold= in Python)"
        )
    chosen = ChosenRows(table, which, choice, split)
    if chosen.count == 0:
        raise DataError(
            f"there is nothing to write: no pair is to be {'kept' if which == 'keep' else 'dropped'}"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    left_out = EXPORTS[what](chosen, out)
    return Counts(written=chosen.count - left_out, of=table.num_rows, left_out=left_out)


def _noise_rate(folder: Path) -> object | None:
    """What the audit found; None where the data said too little, or the audit is not complete."""
    return facts_in(folder / SUMMARY).get("noise_rate")


def _write_keep_list(rows: ChosenRows, out: Path) -> int:
    nameless = 0

    def ids() -> Iterator[str]:
        nonlocal nameless
        for pair_id in rows.values("id"):
            if pair_id is None:
                nameless += 1
            else:
                yield pair_id

    _write_lines(out, lambda file: file.writelines(keep_list_lines(ids())))
    return nameless


def _write_csv(rows: ChosenRows, out: Path) -> int:
    own = rows.table.own

    def write(file: Any) -> None:
        tab_separated = out.suffix.lower() == ".tsv"
        writer = csv.writer(file, delimiter="\t" if tab_separated else ",", lineterminator="\n")
        writer.writerow(own)
        for piece in rows.pieces(list(own.values())):
            columns = [column.to_pylist() for column in piece.columns]
            writer.writerows([_cell(value) for value in row] for row in zip(*columns, strict=True))

    _write_lines(out, write)
    return 0


def _write_parquet(rows: ChosenRows, out: Path) -> int:
    pa = arrow()
    parquet = require("pyarrow.parquet", extra="audit", purpose="write a table")
    own = rows.table.own
    schema = pa.schema([rows.table.schema.field(stored).with_name(name) for name, stored in own.items()])

    def write(partial: Path) -> None:
        with parquet.ParquetWriter(partial, schema) as writer:
            for piece in rows.pieces(list(own.values())):
                writer.write_table(piece.rename_columns(list(own)).cast(schema))

    _complete_or_not_there(out, write)
    return 0


def _write_shards(rows: ChosenRows, out: Path) -> int:
    if rows.table.source.get("format") != "webdataset":
        raise UserError(
            "only pairs that came from tar shards can be written as tar shards; choose csv or parquet"
        )
    expected = Counter(shard for shard in rows.values("shard") if shard is not None)

    def keys_of_shard() -> Iterator[tuple[str, set[str]]]:
        """A shard is given away when its last row has come, so that few are in memory at a time."""
        missing, keys = Counter(expected), dict[str, set[str]]()
        for piece in rows.pieces(["shard", "id"]):
            for shard, key in zip(piece["shard"].to_pylist(), piece["id"].to_pylist(), strict=True):
                if shard is None:
                    continue
                keys.setdefault(shard, set()).add(key)
                missing[shard] -= 1
                if missing[shard] == 0:
                    yield shard, keys.pop(shard)

    return copy_shards(list(expected), keys_of_shard(), out)


def _write_uids(rows: ChosenRows, out: Path) -> int:
    uids = _uids(rows)

    def write(partial: Path) -> None:
        numbers = np.lib.format.open_memmap(partial, mode="w+", dtype=UID_DTYPE, shape=(rows.count,))
        for place, uid in enumerate(uids):
            if not isinstance(uid, str) or not UID.fullmatch(uid):
                raise DataError(f"the uid {uid!r:.60} does not consist of 32 hex digits, as DataComp's do")
            numbers[place] = (int(uid[:16], 16), int(uid[16:], 16))
        numbers.sort()  # in the file: the system may put its pages out
        numbers.flush()

    _complete_or_not_there(out, write)
    return 0


def _uids(rows: ChosenRows) -> Iterator[Any]:
    """DataComp's 128-bit ids: in a column 'uid', as the pairs' own ids, or in the .json beside each picture."""
    name = rows.table.own.get("uid")
    if name is not None:
        return rows.values(name)
    other = next((i for i in rows.values("id") if i is None or not UID.fullmatch(i)), "")
    if other == "":
        return rows.values("id")
    if rows.table.source.get("format") == "webdataset":
        return (
            uid
            for piece in rows.pieces(["shard", "id"])
            for uid in uids_in_shards(piece["shard"].to_pylist(), piece["id"].to_pylist())
        )
    raise DataError(
        "these pairs have no DataComp uids: there is no column 'uid', and their ids are not 32 hex digits, "
        f"such as '{other}'"
    )


def _write_lines(out: Path, write: Callable[[Any], None]) -> None:
    def write_text(partial: Path) -> None:
        with partial.open("w", encoding="utf-8", newline="") as file:
            write(file)

    _complete_or_not_there(out, write_text)


def _complete_or_not_there(out: Path, write: Callable[[Path], None]) -> None:
    partial = out.with_name(f".partial-{out.name}")
    try:
        write(partial)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


EXPORTS: dict[str, Callable[[ChosenRows, Path], int]] = {
    "keep-list": _write_keep_list,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "shards": _write_shards,
    "uids": _write_uids,
}
