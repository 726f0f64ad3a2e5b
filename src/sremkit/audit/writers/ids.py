"""Lists of ids: a keep-list, one id a line, as training reads it; and DataComp's 128-bit uids, sorted, as .npy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.audit.selection import Selection
from sremkit.audit.writers.shards import members_of
from sremkit.data.formats.webdataset import MAX_TEXT_BYTES, key_of_member
from sremkit.data.training_pairs import keep_list_lines
from sremkit.errors import DataError
from sremkit.io import reserve

UID = re.compile(r"[0-9a-fA-F]{32}")
UID_DTYPE = np.dtype("u8,u8")  # 128 bits as DataComp stores them: the first 16 hex digits, then the others


def write_keep_list(rows: Selection, out: Path) -> None:
    def ids() -> Iterator[str]:
        for pair_id in rows.values("id"):
            if pair_id is None:
                rows.left_out += 1
            else:
                yield pair_id

    with out.open("w", encoding="utf-8", newline="") as file:
        file.writelines(keep_list_lines(ids()))


def write_uids(rows: Selection, out: Path) -> None:
    uids = _uids(rows)
    numbers = np.lib.format.open_memmap(out, mode="w+", dtype=UID_DTYPE, shape=(rows.count,))
    reserve(out)
    for place, uid in enumerate(uids):
        if not isinstance(uid, str) or not UID.fullmatch(uid):
            raise DataError(f"the uid {uid!r:.60} does not consist of 32 hex digits, as DataComp's do")
        numbers[place] = (int(uid[:16], 16), int(uid[16:], 16))
    numbers.sort()  # in the file, so that the system may evict its pages
    numbers.flush()


def _uids(rows: Selection) -> Iterator[Any]:
    """DataComp's 128-bit uids: in a column 'uid', as the pairs' ids, or in the .json of each sample."""
    if "uid" in rows.own:
        return rows.values(rows.own["uid"])
    other = next((i for i in rows.values("id") if i is None or not UID.fullmatch(i)), "")
    if other == "":
        return rows.values("id")
    if rows.format == "webdataset":
        return (
            uid
            for chunk in rows.chunks(["shard", "id"])
            for uid in uids_in_shards(chunk["shard"].to_pylist(), chunk["id"].to_pylist())
        )
    raise DataError(
        "these pairs have no DataComp uids: there is no column 'uid', and their ids are not 32 hex digits, "
        f"such as '{other}'"
    )


def uids_in_shards(shards: Sequence[str | None], keys: Sequence[str]) -> list[Any]:
    """The field "uid" in the .json of each key, as img2dataset and DataComp write it, or None."""
    wanted: dict[str, set[str]] = {}
    for shard, key in zip(shards, keys, strict=True):
        if shard is not None:
            wanted.setdefault(shard, set()).add(key)
    found: dict[tuple[str, str], Any] = {}
    for shard, keys_here in wanted.items():
        with open(shard, "rb") as file:
            for member in members_of(shard, keys_here):
                if member.name.lower().endswith(".json") and member.size <= MAX_TEXT_BYTES:
                    file.seek(member.offset)
                    found[shard, key_of_member(member.name)[0]] = _uid(file.read(member.size))
    return [found.get((shard or "", key)) for shard, key in zip(shards, keys, strict=True)]


def _uid(content: bytes) -> Any:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return fields.get("uid") if isinstance(fields, dict) else None
