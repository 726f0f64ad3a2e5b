"""Formats of image-text pairs, one file each. `read_pairs` recognises the format and reads one split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from sremkit.config.options import Option, options_of
from sremkit.data.csv_parquet import SourceTable
from sremkit.data.format_utils import UnknownSplitError
from sremkit.data.pairs import Pairs
from sremkit.errors import DataError
from sremkit.registry import Registry


class Format(Protocol):
    """A way to store pairs."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        """Whether `path` looks like this format; fast, and never raises."""

    @staticmethod
    def read(path: Path, *args: Any, **options: Any) -> Pairs:
        """Read one split, named by the keyword `split`; other keywords are the format's own options.

        A split that does not exist raises `UnknownSplitError`. A collection without splits is read whole. A format
        that can read several splits in one pass also has `read_splits(path, *, splits, keep_rows, **options)`,
        which returns a `Collection`. If `read` takes `**options`, the attribute `options` is a callable with them.

        Args:
            on_error: what to do with a row that cannot be used: "raise", or "skip" it and report how many.
        """

    @staticmethod
    def example(folder: Path) -> tuple[Path, dict[str, Any]]:
        """Write a collection of two pairs, "a dog" and "a cat", in the split "train".

        Returns:
            Its path and options for `read`. Tests of all formats read it.
        """


EXAMPLE_TEXTS = ("a dog", "a cat")

FORMATS: Registry[type[Format]] = Registry(
    "format",
    packages=("sremkit.data.formats", "sremkit.data.generated"),
    group="sremkit.formats",
    accepts=lambda component: all(callable(getattr(component, name, None)) for name in ("recognizes", "read")),
)

WHOLE = "all"  # name of the only split of a collection without splits
_NO_SPLIT = "all splits"  # a name that no collection has; it appears in messages


@dataclass(frozen=True, eq=False)
class Collection:
    """The pairs of every split; a collection without splits has one entry, 'all'."""

    pairs: dict[str, Pairs]
    has_splits: bool
    table: SourceTable | None = None  # all columns and rows of a table, if they were kept


def read_pairs(path: str | Path, *, split: str = "train", format: str | None = None, **options: Any) -> Pairs:
    """Read one split of the pairs at `path`.

    Args:
        format: one of `FORMATS`; by default the one that recognises the path.
        options: of the format.
    """
    path = Path(path)
    if not path.exists() and not path.parent.exists():
        raise DataError(f"{path} does not exist; check the spelling")
    format = format or find_format(path)
    _check_options(format, options)
    return FORMATS[format].read(path, split=split, **options)


def read_collection(
    path: str | Path,
    *,
    splits: Sequence[str] | None = None,
    format: str | None = None,
    keep_rows: bool = False,
    **options: Any,
) -> Collection:
    """Read every split, or the named ones; rows that cannot be read are left out.

    Args:
        keep_rows: of a table, keep all columns and rows in `Collection.table`.
    """
    path = Path(path)
    format = format or find_format(path)
    _check_options(format, options)
    if "on_error" in format_options(format):
        options = {"on_error": "skip", **options}
    read_splits = getattr(FORMATS[format], "read_splits", None)
    if read_splits is not None:
        return read_splits(path, splits=splits, keep_rows=keep_rows, **options)
    try:
        # For a split that does not exist, a reader names those it has, or reads everything if it has none.
        whole = read_pairs(path, split=_NO_SPLIT, format=format, **options)
    except UnknownSplitError as error:
        names = splits or error.known
        if not names:
            raise DataError(f"{path} holds no pairs: no split was found in it") from error
        found = [read_pairs(path, split=name, format=format, **options) for name in names]
        return Collection({pairs.split: pairs for pairs in found}, has_splits=True)
    if splits is not None and list(splits) != [WHOLE]:
        raise DataError(f"{path} has no splits; leave --split away (split= in Python)")
    return Collection({WHOLE: replace(whole, split=WHOLE)}, has_splits=False)


def find_format(path: Path) -> str:
    """The name of the format that recognises `path`."""
    for name in FORMATS:
        if FORMATS[name].recognizes(path):
            return name
    if not path.exists():
        raise DataError(f"{path} does not exist; check the spelling")
    raise DataError(f"{path} is in none of the known formats ({', '.join(FORMATS)}); {_missing_caption_hint(path)}")


def format_options(format: str) -> dict[str, Option]:
    """The format's options by their names."""
    options = options_of(getattr(FORMATS[format], "options", FORMATS[format].read), also_documented_in=Format.read)
    return {option.name: option for option in options if option.name not in ("path", "split", "keep_rows")}


def _check_options(format: str, options: dict[str, Any]) -> None:
    known = format_options(format)
    for name in options:
        if name not in known:
            raise DataError(f"the format '{format}' has no option '{name}'; its options are: {', '.join(known)}")


def _missing_caption_hint(path: Path) -> str:
    from sremkit.data.formats.folder import some_images

    image = next(some_images(path), None)
    if image is None:
        return "name one with --format (format= in Python)"
    return (
        f"an image {image.name} needs its caption in {image.stem}.txt next to it, or give a CSV file with the "
        "columns path and caption"
    )
