"""Tar shards: the samples of the selected pairs, copied from the shards that they came from."""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from sremkit.audit.selection import Selection
from sremkit.data.formats.webdataset import MAX_TEXT_BYTES, key_of_member
from sremkit.data.images import TarMember, tar_members
from sremkit.data.pairs import Problems
from sremkit.errors import DataError, UserError
from sremkit.io import atomic_write


def write_shards(rows: Selection, out: Path) -> None:
    """Write shards of the same names into a folder, with some of their samples, copied without unpacking.

    Samples whose names would lead out of the folder they are unpacked in are left out.
    """
    if rows.format != "webdataset":
        raise UserError("only pairs from tar shards can be written as tar shards; choose csv or parquet")
    missing = Counter(shard for shard in rows.values("shard") if shard is not None)
    names = [Path(shard).name for shard in missing]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise DataError(f"two shards are called {repeated}; export one split at a time with --split")
    captions = dict[str, dict[str, str | None]]()  # new ones, by shard and key
    for chunk in rows.chunks(["shard", "id"]):
        for shard, key in zip(chunk["shard"].to_pylist(), chunk["id"].to_pylist(), strict=True):
            if shard is None:
                continue
            captions.setdefault(shard, {})[key] = rows.new_captions.get((shard, key))
            missing[shard] -= 1
            if missing[shard] == 0:  # it is written after its last row, so that the keys of few shards are in memory
                of_shard = captions.pop(shard)
                safe = {key: text for key, text in of_shard.items() if stays_inside(key)}
                rows.left_out += len(of_shard) - len(safe)
                atomic_write(out / Path(shard).name, partial(_copy_samples, shard, safe))


def stays_inside(name: str) -> bool:
    """Whether a member of this name is unpacked below the folder it is unpacked in."""
    path = PurePosixPath(name.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts and ":" not in (path.parts[:1] or ("",))[0]


def members_of(shard: str, keys: set[str]) -> Iterator[TarMember]:
    for member in tar_members(Path(shard), Problems("skip")):
        if key_of_member(member.name)[0] in keys:
            yield member


def _copy_samples(shard: str, captions: Mapping[str, str | None], out: Path) -> None:
    """Copy the members of these keys; a caption that is not None replaces the stored one."""
    with open(shard, "rb") as source, tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as target:
        for member in members_of(shard, set(captions)):
            entry = tarfile.TarInfo(member.name)
            entry.size = member.size
            source.seek(member.offset)
            new = _new_caption(source, member, captions[key_of_member(member.name)[0]])
            if new is not None:
                entry.size = len(new)
                target.addfile(entry, io.BytesIO(new))
                continue
            source.seek(member.offset)
            target.addfile(entry, source)  # reads exactly `size` bytes


def _new_caption(source: IO[bytes], member: TarMember, caption: str | None) -> bytes | None:
    """The content of a .txt or .json member with another caption; None where it stays as it is."""
    suffix = member.name.lower().rpartition(".")[2]
    if suffix not in ("txt", "json") or member.size > MAX_TEXT_BYTES or caption is None:
        return None
    if suffix == "txt":
        return caption.encode()
    try:
        fields = json.loads(source.read(member.size))
    except ValueError:
        return None
    if not isinstance(fields, dict) or "caption" not in fields:
        return None
    return json.dumps({**fields, "caption": caption}, ensure_ascii=False).encode()
