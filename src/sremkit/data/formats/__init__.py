"""One file a format. Each gives `Pairs`; `read_pairs` recognises which one is meant."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Protocol

from sremkit.data.pairs import Pairs
from sremkit.errors import DataError
from sremkit.registry import Registry


class Format(Protocol):
    """A way in which pairs are stored."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        """Whether `path` looks like this format; cheap, and never an error."""

    @staticmethod
    def read(path: Path, *args: Any, **options: Any) -> Pairs:
        """Read one split, named by the keyword `split`; every format has keyword options of its own."""


ELSEWHERE = "say where the pictures lie with --image-root (image_root= in Python)"  # for messages

FORMATS: Registry[type[Format]] = Registry("format", package="sremkit.data.formats")


def read_pairs(path: str | Path, *, split: str = "train", format: str | None = None, **options: Any) -> Pairs:
    """Read the pairs at `path`, in the named format or in the one that recognises the path."""
    path = Path(path)
    if not path.exists() and not path.parent.exists():
        raise DataError(f"{path} does not exist; check the spelling")
    return _read(format or find_format(path), path, split, options)


def find_format(path: Path) -> str:
    """The name of the format that recognises `path`."""
    for name in FORMATS:
        if FORMATS[name].recognizes(path):
            return name
    if not path.exists():
        raise DataError(f"{path} does not exist; check the spelling")
    raise DataError(
        f"{path} is in none of the known formats ({', '.join(FORMATS)}); {_what_is_missing(path)}"
    )


def _what_is_missing(path: Path) -> str:
    from sremkit.data.formats.folder import first_picture

    picture = first_picture(path)
    if picture is None:
        return "name one with --format (format= in Python)"
    return (
        f"a picture {picture.name} needs its caption in {picture.stem}.txt beside it, or give a CSV file with the "
        "columns path and caption"
    )


def _read(format: str, path: Path, split: str, options: dict[str, Any]) -> Pairs:
    reader = FORMATS[format]
    known = inspect.signature(reader.read).parameters
    taken = [name for name in known if name not in ("path", "split")]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    for name in options:
        if name not in taken and not takes_any:
            raise DataError(
                f"the format '{format}' has no option '{name}'; its options are: {', '.join(taken)}"
            )
    return reader.read(path, split=split, **options)
