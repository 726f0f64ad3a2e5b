"""What format readers share: reporting of bad rows, checking of pairs, names of splits, lines of text files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sremkit.data.pairs import MISSING, Pairs, Skipped
from sremkit.errors import DataError
from sremkit.io import read_bytes

OnError = Literal["raise", "skip"]
Problem = tuple[str, str]  # reason and remedy
IMAGE_ROOT_HINT = "give the folder of the images with --image-root (image_root= in Python)"  # for messages

VALIDATION = ("val", "dev", "valid", "validation")  # four names of one split
SPLIT_NAMES = ("train", "test", *VALIDATION)
# "train" in captions_train2017, test-000 and cc3m.train, but not in "trains" or "latest".
_SPLIT_IN_NAME = re.compile(rf"(?:^|[-_.])({'|'.join(SPLIT_NAMES)})(?:\d{{4}})?(?=[-_.]|$)")


class Problems:
    """Collects bad rows: raises at the first one, or counts them so that the reader continues."""

    MAX_EXAMPLES = 20

    def __init__(self, on_error: OnError = "raise") -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', got '{on_error}'")
        self.on_error = on_error
        self._examples: list[str] = []
        self._places: list[tuple[str, str]] = []

    def report(self, where: str, reason: str, remedy: str) -> None:
        """Report one bad row: `where` is file and row, `reason` is short so that equal ones can be counted."""
        where = printable(where)
        sentence = printable(f"{where}: {reason}; {remedy}")
        if self.on_error == "raise":
            raise DataError(f"{sentence}, or pass on_error='skip' to leave such rows out")
        self._places.append((where, reason))
        if len(self._examples) < self.MAX_EXAMPLES:
            self._examples.append(sentence)

    def skipped(self) -> Skipped:
        return Skipped(tuple(self._places), tuple(self._examples))


class PairBuilder:
    """Collects valid pairs and reports the others; images are numbered in the order of their first pair.

    Attributes:
        rows: source row of each pair, for its text features.
        image_rows: source row of each image's first pair, for its image features.
    """

    def __init__(self, problems: Problems | None = None) -> None:
        self.problems = problems or Problems()
        self.rows: list[int] = []
        self.image_rows: list[int] = []
        self._texts: list[str] = []
        self._pair_ids: dict[str, None] = {}  # an ordered set
        self._image_of_text: list[int] = []
        self._image_numbers: dict[str, int] = {}

    def add(self, where: str, *, pair_id: str, text: object, image_id: str, row: int = MISSING) -> bool:
        """Add this pair, or report what is wrong with it and return False."""
        problem = self.try_add(pair_id=pair_id, text=text, image_id=image_id, row=row)
        if problem is not None:
            self.problems.report(where, *problem)
        return problem is None

    def try_add(self, *, pair_id: str, text: object, image_id: str, row: int = MISSING) -> Problem | None:
        """Add this pair, or return what is wrong with it."""
        if text is not None and not isinstance(text, str):
            return "the caption is not text", f"write words instead of {text!r:.40}"
        text = (text or "").strip()
        if not text:
            return "the caption is empty", "write one or remove the pair"
        for name, value in (("caption", text), ("id", pair_id), ("name of the image", image_id)):
            if printable(value) != value:
                return f"the {name} is not valid Unicode", "it holds half of a surrogate pair; save it as UTF-8"
        if pair_id in self._pair_ids:
            return "the id has appeared before", f"give one of the pairs '{pair_id}' another id"
        number = self._image_numbers.setdefault(image_id, len(self._image_numbers))
        if number == len(self.image_rows):
            self.image_rows.append(row)
        self._pair_ids[pair_id] = None
        self._texts.append(text)
        self._image_of_text.append(number)
        self.rows.append(row)
        return None

    @property
    def image_ids(self) -> list[str]:
        return list(self._image_numbers)

    def build(self, *, name: str, split: str, **sources: Any) -> Pairs:
        """The collected pairs; `sources` are the images and features that `Pairs` takes."""
        skipped = self.problems.skipped()
        if not self._texts and skipped.count:
            reasons = ", ".join(f"{reason}: {count:,}" for reason, count in skipped.reasons.most_common(3))
            raise DataError(
                f"{name} ({split}) holds no pairs that can be used; {skipped.count:,} were left out ({reasons}), "
                f"the first because {skipped.examples[0]}"
            )
        return Pairs(
            name=name,
            split=split,
            pair_ids=list(self._pair_ids),
            texts=self._texts,
            image_of_text=np.array(self._image_of_text, dtype=np.int64),
            image_ids=self.image_ids,
            skipped=skipped,
            source_rows=None if MISSING in self.rows else np.array(self.rows, dtype=np.int64),
            **sources,
        )


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


def printable(text: str) -> str:
    """The text, with escapes for what UTF-8 cannot encode: half a surrogate pair, or bytes of a file name."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


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
