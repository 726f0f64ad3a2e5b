"""Words as a report shows them: of bounded length, whatever was in the data. Escaping is the template's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

SHORT, LONG = 180, 3000  # characters of a caption, and of one behind "show all"
NAME, LINE = 120, 300  # characters of an id or a file name, and of a problem or a setting
SETTINGS = 80  # lines


class Caption(NamedTuple):
    """A caption as it is shown: short, and whole behind "show all" where it is long."""

    short: str
    whole: str  # empty where `short` is all of it
    left_out: int  # characters that not even `whole` shows


def caption(value: object) -> Caption:
    """A caption in one paragraph."""
    text = " ".join(clean(value).split())
    if len(text) <= SHORT:
        return Caption(text, "", 0)
    return Caption(text[: SHORT - 20].rstrip() + " …", text[:LONG], max(0, len(text) - LONG))


def name(value: object) -> str:
    """An id or a file name; of a long one the end tells more."""
    text = clean(value)
    return text if len(text) <= NAME else "…" + text[-NAME:]


def line(value: object) -> str:
    """A sentence."""
    text = clean(value)
    return text if len(text) <= LINE else text[:LINE] + " …"


def settings_lines(nested: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Names and values: {"a": {"b": 1}} is a.b and 1."""
    lines: list[tuple[str, str]] = []
    for key, value in nested.items():
        if isinstance(value, Mapping):
            lines += settings_lines(value, f"{prefix}{key}.")
        elif isinstance(value, str):
            lines.append((name(f"{prefix}{key}"), line(value)))
        else:
            lines.append((name(f"{prefix}{key}"), line(json.dumps(value, ensure_ascii=False, default=str))))
    return lines[:SETTINGS]


def clean(value: object) -> str:
    """Text without control characters, which have no place in HTML, and without halves of characters."""
    return re.sub(
        r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", str(value)
    )
