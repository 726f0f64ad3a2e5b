"""Text and JSON files, read whole; what is wrong with them is said with file and line."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

from sremkit.data.pairs import Problems
from sremkit.errors import DataError


def read_bytes(path: Path) -> bytes:
    """All bytes of a file, without the mark that some editors put before UTF-8."""
    try:
        return path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except FileNotFoundError as cause:
        raise DataError(f"{path} does not exist; check the folder and the spelling") from cause
    except OSError as cause:
        raise DataError(
            f"{path} cannot be read ({cause.strerror}); check that it is a file you may open"
        ) from cause


def read_lines(path: Path, problems: Problems) -> list[str | None]:
    """The lines of a UTF-8 file; one that is not UTF-8 is reported and becomes None.

    Lines end at a line feed only. `str.splitlines` would also break at the rarer marks that captions from
    the web contain, and every caption after such a one would move to the wrong image.
    """
    raw = read_bytes(path)
    try:
        lines: list[str | None] = list(raw.decode("utf-8").replace("\r\n", "\n").split("\n"))
    except UnicodeDecodeError:
        lines = [
            decoded(line.removesuffix(b"\r"), f"{path}, line {number}", problems)
            for number, line in enumerate(raw.split(b"\n"), start=1)
        ]
    if lines[-1] == "":  # what follows the last line feed is no line
        lines.pop()
    return lines


def decoded(raw: bytes, where: str, problems: Problems) -> str | None:
    """These bytes as text, or None after reporting that they are not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as cause:
        problems.found(
            where, "not UTF-8", f"byte {cause.start + 1} is {raw[cause.start]:#04x}; save it as UTF-8"
        )
        return None


def read_json(path: Path) -> Any:
    """The content of a UTF-8 JSON file."""
    raw = read_bytes(path)
    try:
        return json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as cause:
        line = raw.count(b"\n", 0, cause.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8; save the file as UTF-8") from cause
    except json.JSONDecodeError as cause:
        raise DataError(
            f"{path}, line {cause.lineno}: not valid JSON ({cause.msg}); "
            "copy the file again if it was cut off, else correct that line"
        ) from cause


def head(path: Path, num_bytes: int = 1 << 16) -> bytes:
    """The beginning of a file, or nothing if it cannot be read: for recognising formats."""
    try:
        with open(path, "rb") as file:
            return file.read(num_bytes)
    except OSError:
        return b""
