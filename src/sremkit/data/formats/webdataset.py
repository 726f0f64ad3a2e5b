"""WebDataset shards, as img2dataset writes them: tar archives with key.jpg, key.txt and key.json."""

from __future__ import annotations

import io
import json
import math
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sremkit.data.format_utils import SPLIT_NAMES, choose_split, decode, split_folder, split_in_name
from sremkit.data.formats import EXAMPLE_TEXTS, FORMATS
from sremkit.data.images import IMAGE_SUFFIXES, PNG_PIXEL, TarImages, TarMember, tar_members
from sremkit.data.pairs import OnError, PairBuilder, Pairs, Problems
from sremkit.errors import DataError

RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
MAX_SHARDS = 1_000_000
MAX_TEXT_BYTES = 1 << 20  # a longer member is no caption, or its size field is damaged


@FORMATS.register("webdataset")
class WebDataset:
    """Tar shards of key.jpg + key.txt or key.json: one tar, a folder of them, or shard-{000..003}.tar."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        if path.is_dir():
            # A folder with a table of its archives is another format.
            return _has_shards(path) and not (path / "pairs.tsv").exists()
        return path.suffix == ".tar"

    @staticmethod
    def read(path: Path, *, split: str, on_error: OnError = "raise", caption_field: str = "caption") -> Pairs:
        """Read the shards of one split; captions and the offsets of images are kept in memory.

        Shards or subfolders that are named like splits are splits; otherwise all shards are read for every split.

        Args:
            caption_field: field of key.json that holds the caption; used if there is no key.txt.
        """
        problems = Problems(on_error)
        shards, found = _shards(path, split)
        pairs = PairBuilder(problems)
        images: list[TarMember] = []
        for shard in shards:
            for key, sample in _samples(shard, problems).items():
                where = f"{shard}, key {key}"
                text = sample.text(where, caption_field, problems)
                if sample.image is None or sample.image.size == 0:
                    if not sample.is_reported:
                        problems.report(where, "no image", "make the shard again")
                elif text is not None and pairs.add(where, pair_id=key, text=text, image_id=key):
                    images.append(sample.image)
        return pairs.build(name=path.stem, split=found, images=TarImages(images))

    @staticmethod
    def example(folder: Path) -> tuple[Path, dict[str, Any]]:
        path = folder / "train-000.tar"
        with tarfile.open(path, "w") as archive:
            for k, text in enumerate(EXAMPLE_TEXTS):
                for name, content in ((f"{k}.png", PNG_PIXEL), (f"{k}.txt", text.encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        return path, {}


@dataclass
class _Sample:
    """The members of one key."""

    image: TarMember | None = None
    txt: bytes | None = None
    json: bytes | None = None
    is_reported: bool = False  # its caption is too long

    def text(self, where: str, caption_field: str, problems: Problems) -> str | None:
        """The caption, or None after reporting why there is none."""
        if self.is_reported:
            return None
        if self.txt is not None:
            return decode(self.txt, where, problems)
        if self.json is None:
            problems.report(where, "no caption", "add a .txt or .json member of that name")
            return None
        try:
            fields = json.loads(self.json)
        except (ValueError, RecursionError):
            problems.report(where, "its .json is not readable", "make the shard again")
            return None
        caption = fields.get(caption_field) if isinstance(fields, dict) else None
        if not isinstance(caption, str):
            problems.report(where, f"its .json has no caption under '{caption_field}'", "set caption_field=")
            return None
        return caption


def _samples(shard: Path, problems: Problems) -> dict[str, _Sample]:
    """The samples of one shard, without the images themselves."""
    samples: dict[str, _Sample] = {}
    members = list(tar_members(shard, problems))
    if not members:
        return samples
    with open(shard, "rb") as file:
        for member in members:
            key, suffix = key_of_member(member.name)
            is_image = f".{suffix}" in IMAGE_SUFFIXES
            if not key.rpartition("/")[2] or not (is_image or suffix in ("txt", "json")):
                continue
            sample = samples.setdefault(key, _Sample())
            if not is_image:
                content = _content(file, member, problems)
                setattr(sample, suffix, content)
                sample.is_reported |= content is None
            elif sample.image is None:
                sample.image = member
            else:
                problems.report(f"{shard}, key {key}", "a second image", "give each image a key of its own")
    if not samples:
        problems.report(str(shard), "no samples", "expected members such as 000000.jpg and 000000.txt")
    return samples


def key_of_member(name: str) -> tuple[str, str]:
    """Key and extension of a member: "a/007.seg.png" is ("a/007", "seg.png")."""
    folder, slash, base = name.rpartition("/")
    stem, _, suffix = base.partition(".")  # WebDataset's rule: the key ends at the first dot of the name
    return folder + slash + stem, suffix.lower()


def _content(file: BinaryIO, member: TarMember, problems: Problems) -> bytes | None:
    if member.size > MAX_TEXT_BYTES:
        problems.report(f"{member.tar}, member {member.name}", "more than 1 MiB of text", "make the shard again")
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
    """Expand `a-{08..10}.tar` to a-08.tar, a-09.tar and a-10.tar."""
    ends = RANGE.findall(pattern)
    too_long = any(len(end) > 18 for range_ in ends for end in range_)
    if too_long or math.prod(int(last) - int(first) + 1 for first, last in ends) > MAX_SHARDS:
        raise DataError(f"{pattern:.100} stands for more than {MAX_SHARDS:,} files; write smaller ranges")
    return _expand(pattern)


def _expand(pattern: str) -> Iterator[str]:
    match = RANGE.search(pattern)
    if match is None:
        yield pattern
        return
    first, last = match.groups()
    for number in range(int(first), int(last) + 1):
        yield from _expand(f"{pattern[: match.start()]}{number:0{len(first)}d}{pattern[match.end() :]}")


def _has_shards(folder: Path) -> bool:
    return any(any(place.glob("*.tar")) for place in (folder, *(folder / name for name in SPLIT_NAMES)))
