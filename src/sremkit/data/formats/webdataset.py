"""WebDataset shards as img2dataset writes them: tar archives with key.jpg, key.txt and key.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sremkit.data.formats import FORMATS
from sremkit.data.images import PICTURE_SUFFIXES, TarImages
from sremkit.data.pair_list import PairList
from sremkit.data.pairs import OnError, Pairs, Problems
from sremkit.data.splits import NAMED, choose_split, split_folder, split_in_name
from sremkit.data.tar_index import TarMember, tar_members
from sremkit.data.text_files import decoded
from sremkit.errors import DataError

RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
MAX_TEXT_BYTES = 1 << 20  # no caption is longer; a damaged size field could claim any length


@FORMATS.register("webdataset")
class WebDataset:
    """Tar shards of key.jpg + key.txt or key.json: one tar, a folder of them, or shard-{000..003}.tar."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        if path.is_dir():
            # A folder that describes its archives in a table of its own is another format.
            return _has_shards(path) and not (path / "pairs.tsv").exists()
        return path.suffix == ".tar"

    @staticmethod
    def read(path: Path, *, split: str, on_error: OnError = "raise", caption_field: str = "caption") -> Pairs:
        """Read the shards of one split; only captions and the places of the pictures stay in memory.

        In a folder, shards or subfolders that are named like splits are told apart; otherwise all
        shards are taken, as the split asked for.

        Args:
            caption_field: where a key.json holds the caption; used where there is no key.txt.
        """
        problems = Problems(on_error)
        shards, found = _shards(path, split)
        pairs = PairList(problems)
        pictures: list[TarMember] = []
        for shard in shards:
            for key, sample in _samples(shard, problems).items():
                where = f"{shard}, key {key}"
                text = sample.text(where, caption_field, problems)
                if sample.picture is None or sample.picture.size == 0:
                    problems.found(where, "no picture", "make the shard again")
                elif text is not None and pairs.add(where, pair_id=key, text=text, image_id=key):
                    pictures.append(sample.picture)
        return pairs.pairs(name=path.stem, split=found, images=TarImages(pictures))


@dataclass
class _Sample:
    """The members of one key."""

    picture: TarMember | None = None
    txt: bytes | None = None
    json: bytes | None = None

    def text(self, where: str, caption_field: str, problems: Problems) -> str | None:
        """The caption, or None after reporting why there is none."""
        if self.txt is not None:
            return decoded(self.txt, where, problems)
        if self.json is None:
            problems.found(where, "no caption", "add a .txt or .json member of that name")
            return None
        try:
            fields = json.loads(self.json)
        except ValueError:
            problems.found(where, "its .json is not readable", "make the shard again")
            return None
        caption = fields.get(caption_field) if isinstance(fields, dict) else None
        if not isinstance(caption, str):
            problems.found(where, f"its .json has no caption under '{caption_field}'", "set caption_field=")
            return None
        return caption


def _samples(shard: Path, problems: Problems) -> dict[str, _Sample]:
    """The samples of one shard, without the pictures themselves."""
    samples: dict[str, _Sample] = {}
    members = list(tar_members(shard, problems))
    if not members:
        return samples
    with open(shard, "rb") as file:
        for member in members:
            key, suffix = key_of_member(member.name)
            is_picture = f".{suffix}" in PICTURE_SUFFIXES
            if not key.rpartition("/")[2] or not (is_picture or suffix in ("txt", "json")):
                continue
            sample = samples.setdefault(key, _Sample())
            if not is_picture:
                setattr(sample, suffix, _content(file, member, problems))
            elif sample.picture is None:
                sample.picture = member
            else:
                problems.found(
                    f"{shard}, key {key}", "a second picture", "give each picture a key of its own"
                )
    if not samples:
        problems.found(str(shard), "no samples", "expected members such as 000000.jpg and 000000.txt")
    return samples


def key_of_member(name: str) -> tuple[str, str]:
    """The sample that a member belongs to, and what it holds: "a/007.seg.png" is ("a/007", "seg.png")."""
    folder, slash, base = name.rpartition("/")
    stem, _, suffix = base.partition(".")  # WebDataset's rule: the key ends at the first dot of the name
    return folder + slash + stem, suffix.lower()


def _content(file: BinaryIO, member: TarMember, problems: Problems) -> bytes | None:
    if member.size > MAX_TEXT_BYTES:
        problems.found(
            f"{member.tar}, member {member.name}", "more than 1 MiB of text", "make the shard again"
        )
        return None
    file.seek(member.offset)
    return file.read(member.size)


def _shards(path: Path, split: str) -> tuple[list[Path], str]:
    if not path.is_dir():
        return [Path(name) for name in expand_ranges(str(path))], split
    folder, found = split_folder(path, split)
    shards = sorted(folder.glob("*.tar"))
    if not shards:
        raise DataError(f"{folder} holds no .tar files; give the folder of the shards, or one shard")
    named = [split_in_name(shard.stem) for shard in shards]
    if folder != path or None in named:
        return shards, found
    found = choose_split(split, [name for name in named if name], path)
    return [shard for shard, name in zip(shards, named, strict=True) if name == found], found


def expand_ranges(pattern: str) -> Iterator[str]:
    """`a-{08..10}.tar` stands for a-08.tar, a-09.tar and a-10.tar."""
    match = RANGE.search(pattern)
    if match is None:
        yield pattern
        return
    first, last = match.groups()
    for number in range(int(first), int(last) + 1):
        yield from expand_ranges(f"{pattern[: match.start()]}{number:0{len(first)}d}{pattern[match.end() :]}")


def _has_shards(folder: Path) -> bool:
    return any(any(place.glob("*.tar")) for place in (folder, *(folder / name for name in NAMED)))
