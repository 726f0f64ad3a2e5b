"""What format readers share: names of splits, and lines of text files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from sremkit.data.pairs import Problems
from sremkit.errors import DataError
from sremkit.io import read_bytes

VALIDATION = ("val", "dev", "valid", "validation")  # four names of one split
SPLIT_NAMES = ("train", "test", *VALIDATION)
# "train" in captions_train2017, test-000 and cc3m.train, but not in "trains" or "latest".
_SPLIT_IN_NAME = re.compile(rf"(?:^|[-_.])({'|'.join(SPLIT_NAMES)})(?:\d{{4}})?(?=[-_.]|$)")


class UnknownSplitError(DataError):
    """A collection has no such split; `known` are the splits it has."""

    def __init__(self, message: str, known: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.known = list(known)


def choose_split(requested: str, found: Iterable[str], where: str | Path) -> str:
    """The name under which the requested split is stored; 'dev' matches 'val' and vice versa."""
    names = sorted(set(found))
    if requested in names:
        return requested
    if requested in VALIDATION:
        others = [name for name in names if name in VALIDATION]
        if len(others) == 1:
            return others[0]
    known = f"it has: {', '.join(names)}" if names else "no split was found in it"
    raise UnknownSplitError(f"{where} has no split '{requested}'; {known}", names)


def split_in_name(name: str) -> str | None:
    """The split in a file or folder name; None if the name contains none or several."""
    named = set(_SPLIT_IN_NAME.findall(name.lower()))
    return named.pop() if len(named) == 1 else None


def split_folder(path: Path, split: str) -> tuple[Path, str]:
    """The subfolder of the split and its name; `path` itself if no subfolder is named like a split."""
    names = (*SPLIT_NAMES, split)
    subfolders = [entry.name for entry in path.iterdir() if entry.is_dir() and entry.name in names]
    if not subfolders:
        return path, split
    found = choose_split(split, subfolders, path)
    return path / found, found


def read_lines(path: Path, problems: Problems) -> list[str | None]:
    """The lines of a UTF-8 file; a line that is not UTF-8 is reported and becomes None.

    Lines end at a line feed only. `str.splitlines` would also split at the rarer separators that captions from
    the web contain, and shift every later caption to the wrong image.
    """
    raw = read_bytes(path)
    try:
        lines: list[str | None] = list(raw.decode("utf-8").replace("\r\n", "\n").split("\n"))
    except UnicodeDecodeError:
        lines = [
            decode(line.removesuffix(b"\r"), f"{path}, line {number}", problems)
            for number, line in enumerate(raw.split(b"\n"), start=1)
        ]
    if lines[-1] == "":  # after the last line feed
        lines.pop()
    return lines


def decode(raw: bytes, where: str, problems: Problems) -> str | None:
    """Decode UTF-8; report other bytes and return None."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as cause:
        problems.report(where, "not UTF-8", f"byte {cause.start + 1} is {raw[cause.start]:#04x}; save it as UTF-8")
        return None


def head(path: Path, num_bytes: int = 1 << 16) -> bytes:
    """The beginning of a file, empty if it cannot be read; for recognising formats."""
    try:
        with open(path, "rb") as file:
            return file.read(num_bytes)
    except OSError:
        return b""
