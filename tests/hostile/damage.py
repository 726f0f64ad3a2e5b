"""Ways to damage a file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

Change = Callable[[Path], object]


def cut(path: Path) -> None:
    """The second half is missing."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def missing(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def a_folder(path: Path) -> None:
    """A folder of that name instead of the file."""
    missing(path)
    path.mkdir()


def flip(position: int) -> Change:
    """One byte is changed; negative positions count from the end."""

    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[position] ^= 0xFF
        path.write_bytes(bytes(content))

    return change


def write(content: bytes | str) -> Change:
    raw = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(raw)


def append(content: bytes) -> Change:
    return lambda path: path.write_bytes(path.read_bytes() + content)


def replace(old: str, new: str) -> Change:
    def change(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


def set_key(key: str, value: Any) -> Change:
    """Another value of a key of a JSON object; "a.b" is a key in a table."""

    def change(path: Path) -> None:
        content = json.loads(path.read_text())
        *tables, name = key.split(".")
        table = content
        for part in tables:
            table = table[part]
        table[name] = value
        path.write_text(json.dumps(content))

    return change


def drop_key(key: str) -> Change:
    def change(path: Path) -> None:
        content = json.loads(path.read_text())
        del content[key]
        path.write_text(json.dumps(content))

    return change


#: Damage that any text file can have.
NOT_UTF8 = write(b'{"epoch": 0, "x": "\xff\xfe"}\n')
NESTED = write("[" * 100_000)
HUGE_NUMBER = write('{"epoch": ' + "9" * 5000 + "}\n")
BINARY = write(bytes(range(256)))


def each(*changes: Change) -> Change:
    """Several changes, one after the other."""

    def change(path: Path) -> None:
        for one in changes:
            one(path)

    return change


def without_checksum(change: Callable[[dict[str, Any]], object]) -> Change:
    """Other facts in a checkpoint's folder, and no checksums: as if another program had written it."""

    def apply(folder: Path) -> None:
        file = folder / "facts.json"
        facts = json.loads(file.read_text())
        del facts["checksums"]
        change(facts)
        file.write_text(json.dumps(facts))

    return apply


def other_tensors(change: Callable[[dict[str, Any]], object]) -> Change:
    """Other tensors in a checkpoint's folder, and no checksums."""

    def apply(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        file = folder / "tensors.safetensors"
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
        change(tensors)
        save_file(tensors, file)
        without_checksum(lambda facts: facts.update(tensor_bytes=file.stat().st_size))(folder)

    return apply
