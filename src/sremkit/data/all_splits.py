"""Every split of a collection at once, for work that concerns all of its pictures or texts."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sremkit.data.formats import FORMATS, find_format, read_pairs
from sremkit.data.pairs import Pairs
from sremkit.data.splits import UnknownSplitError
from sremkit.errors import DataError

WHOLE = "all"  # what the pairs of a collection without splits are called
_NOWHERE = "all splits"  # a split that no collection has; messages may name it


@dataclass(frozen=True, eq=False)
class Collection:
    """The pairs of every split; one without splits has a single entry, called 'all'."""

    pairs: dict[str, Pairs]
    has_splits: bool


def read_collection(
    path: str | Path, *, splits: list[str] | None = None, format: str | None = None, **options: Any
) -> Collection:
    """Read every split of a collection, or the named ones; rows that cannot be read are left out.

    Args:
        options: the format's own.
    """
    path = Path(path)
    format = format or find_format(path)
    if "on_error" in inspect.signature(FORMATS[format].read).parameters:
        options = {"on_error": "skip", **options}
    try:
        # Asked for a split that cannot exist, a reader names those it has, or gives everything if it knows none.
        whole = read_pairs(path, split=_NOWHERE, format=format, **options)
    except UnknownSplitError as answer:
        names = splits or answer.known
        if not names:
            raise DataError(f"{path} holds no pairs: no split was found in it") from answer
        found = [read_pairs(path, split=name, format=format, **options) for name in names]
        return Collection({pairs.split: pairs for pairs in found}, has_splits=True)
    if splits is not None and splits != [WHOLE]:
        lacking = "split column" if format == "table" else "splits"
        raise DataError(f"{path} has no {lacking}; leave --split away (split= in Python)")
    return Collection({WHOLE: replace(whole, split=WHOLE)}, has_splits=False)
