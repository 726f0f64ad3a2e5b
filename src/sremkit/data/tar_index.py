"""What lies where inside a tar archive, found without extracting anything."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sremkit.data.pairs import Problems

BLOCK = 512  # tar archives consist of blocks of this size; one of zeros marks the end


class TarMember(NamedTuple):
    """One file inside an archive."""

    tar: str
    name: str
    offset: int
    size: int


def tar_members(path: Path, problems: Problems) -> Iterator[TarMember]:
    """The files of an uncompressed archive in their order; links and folders are passed over.

    A damaged archive gives the members before the damage, then one problem.
    """
    try:
        length = os.path.getsize(path)
        with tarfile.open(path, "r:") as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # else tarfile remembers them all
                if member.offset_data + member.size > length:  # tarfile would notice only after giving it out
                    raise tarfile.ReadError("unexpected end of data")
                if member.isreg() and not member.issparse():
                    yield TarMember(str(path), member.name, member.offset_data, member.size)
            damage = _damage_at(path, archive.offset)
    except FileNotFoundError:
        damage = "the archive does not exist"
    except (tarfile.TarError, OSError, ValueError) as cause:
        damage = "not a readable uncompressed tar archive" if "end of data" not in str(cause) else "cut off"
    if damage:
        problems.found(str(path), damage, "copy or make it again, and unpack .gz first")


def _damage_at(path: Path, end: int) -> str:
    """Why the list of members ended at this byte, where tarfile itself says nothing."""
    with open(path, "rb") as file:
        file.seek(end)
        block = file.read(BLOCK)
    if len(block) < BLOCK:
        return "cut off"
    return "damaged in the middle" if any(block) else ""
