"""Names of splits: which one is meant, and which one a file name speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from sremkit.errors import DataError

VALIDATION = ("val", "dev", "valid", "validation")  # four names for one thing
NAMED = ("train", "test", *VALIDATION)

# "train" in captions_train2017, test-000 and cc3m.train, but not in "trains" or "latest".
_IN_NAME = re.compile(rf"(?:^|[-_.])({'|'.join(NAMED)})(?:\d{{4}})?(?=[-_.]|$)")


class UnknownSplitError(DataError):
    """A split that a collection does not have; `known` are those that it has."""

    def __init__(self, message: str, known: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.known = list(known)


def choose_split(asked: str, found: Iterable[str], where: str | Path) -> str:
    """The name under which the split `asked` for is stored; 'dev' finds 'val' and the other way round."""
    names = sorted(set(found))
    if asked in names:
        return asked
    if asked in VALIDATION:
        others = [name for name in names if name in VALIDATION]
        if len(others) == 1:
            return others[0]
    known = f"it has: {', '.join(names)}" if names else "no split was found in it"
    raise UnknownSplitError(f"{where} has no split '{asked}'; {known}", names)


def split_in_name(name: str) -> str | None:
    """The split that a file or folder name speaks of, None if it names none or several."""
    named = set(_IN_NAME.findall(name.lower()))
    return named.pop() if len(named) == 1 else None


def split_folder(path: Path, split: str) -> tuple[Path, str]:
    """The subfolder of the split and its name; `path` itself if no subfolder is named like a split."""
    subfolders = [entry.name for entry in path.iterdir() if entry.is_dir() and entry.name in (*NAMED, split)]
    if not subfolders:
        return path, split
    found = choose_split(split, subfolders, path)
    return path / found, found
