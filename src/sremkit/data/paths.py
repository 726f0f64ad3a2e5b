"""Where collections lie: a path, or a name below the folder that SREMKIT_DATA points to."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_ROOT = "../shared/data"


def data_root() -> Path:
    """The folder that holds the data sets: the variable SREMKIT_DATA, else a folder beside the project."""
    return Path(os.environ.get("SREMKIT_DATA", DEFAULT_ROOT))


def resolve_source(source: str) -> str:
    """Fill in `$SREMKIT_DATA` and `~`; anything else stays as it is."""
    return os.path.expanduser(source.replace("$SREMKIT_DATA", str(data_root())))
