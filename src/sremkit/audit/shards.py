"""Tar shards, filtered: the samples that are kept are copied byte by byte, and nothing is ever unpacked."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from sremkit.data.formats.webdataset import MAX_TEXT_BYTES, key_of_member
from sremkit.data.pairs import Problems
from sremkit.data.tar_index import TarMember, tar_members
from sremkit.errors import DataError


class Counts(NamedTuple):
    """How many pairs an export wrote."""

    written: int
    of: int
    left_out: int  # chosen, but impossible to write


def copy_shards(shards: Sequence[str], keys_of_shard: Iterable[tuple[str, set[str]]], out: Path) -> int:
    """Write for each shard one of the same name with only its keys into the folder `out`.

    Args:
        shards: all of them.
        keys_of_shard: each shard with its keys, in any order.

    Returns:
        how many samples were left out because their names would lead out of the folder they are unpacked in.
    """
    names = [Path(shard).name for shard in shards]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"two shards are called {twice}; export one split at a time with --split")
    out.mkdir(parents=True)
    unsafe = 0
    for shard, keys in keys_of_shard:
        safe = {key for key in keys if stays_inside(key)}
        unsafe += len(keys) - len(safe)
        partial = out / f".partial-{Path(shard).name}"
        with open(shard, "rb") as source, tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as target:
            for member in _members(shard, safe):
                _copy(source, member, target)
        partial.replace(out / Path(shard).name)
    return unsafe


def uids_in_shards(shards: Sequence[str | None], keys: Sequence[str]) -> list[Any]:
    """The field "uid" of the .json of each key, as img2dataset and DataComp write it; None where there is none."""
    wanted: dict[str, set[str]] = {}
    for shard, key in zip(shards, keys, strict=True):
        if shard is not None:
            wanted.setdefault(shard, set()).add(key)
    found: dict[tuple[str, str], Any] = {}
    for shard, keys_here in wanted.items():
        with open(shard, "rb") as file:
            for member in _members(shard, keys_here):
                if member.name.lower().endswith(".json") and member.size <= MAX_TEXT_BYTES:
                    file.seek(member.offset)
                    found[shard, key_of_member(member.name)[0]] = _uid(file.read(member.size))
    return [found.get((shard or "", key)) for shard, key in zip(shards, keys, strict=True)]


def stays_inside(name: str) -> bool:
    """Whether a member of this name is unpacked below the folder it is unpacked in."""
    path = PurePosixPath(name.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts and ":" not in (path.parts[:1] or ("",))[0]


def _members(shard: str, keys: set[str]) -> Iterator[TarMember]:
    for member in tar_members(Path(shard), Problems("skip")):
        if key_of_member(member.name)[0] in keys:
            yield member


def _copy(source: BinaryIO, member: TarMember, target: tarfile.TarFile) -> None:
    entry = tarfile.TarInfo(member.name)
    entry.size = member.size
    source.seek(member.offset)
    target.addfile(entry, source)  # reads exactly `size` bytes


def _uid(content: bytes) -> Any:
    try:
        fields = json.loads(content)
    except ValueError:
        return None
    return fields.get("uid") if isinstance(fields, dict) else None
