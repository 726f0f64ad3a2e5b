"""Files that are complete or absent, JSON that names its damage, short digests, and locks between processes."""

from __future__ import annotations

import codecs
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from sremkit.errors import DataError, UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAX_SEED = 2**63 - 1  # that every generator accepts
PARTIAL = ".partial-"  # prefix of files that are being written


def atomic_write(path: Path, content: str | bytes | Callable[[Path], object]) -> None:
    """Write a file under a temporary name, flush it to disk and rename it.

    Readers see the old file or the new one, never a part. A failed write leaves the old file as it was.

    Args:
        content: text (UTF-8), bytes, or a function that writes to the path it is given.
    """
    partial = path.with_name(f"{PARTIAL}{os.getpid()}-{path.name}")
    partial.unlink(missing_ok=True)  # a link of that name would be followed
    try:
        if isinstance(content, str):
            partial.write_bytes(content.encode("utf-8"))
        elif isinstance(content, bytes):
            partial.write_bytes(content)
        else:
            content(partial)
        fsync(partial)
        partial.replace(path)
    except OSError as problem:
        if problem.filename is None:  # so of `write`, and of libraries
            problem.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def atomic_write_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Write a new folder under a temporary name, and rename it when all of its files are there.

    Args:
        write: writes into the folder that it is given, which exists already.
    """
    partial = path.with_name(f"{PARTIAL}{os.getpid()}-{path.name}")
    remove_partial(partial)
    try:
        partial.mkdir()
        write(partial)
        fsync(partial)
        partial.rename(path)
    finally:
        remove_partial(partial)


def remove_partial(path: Path) -> None:
    """Remove an unfinished file or folder, if there is one; a link is not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_partials_of(path: Path) -> None:
    """Remove what killed processes left of an unfinished file or folder; no other process may be writing it."""
    name = re.compile(rf"{re.escape(PARTIAL)}\d+-{re.escape(path.name)}")
    for entry in path.parent.iterdir():
        if name.fullmatch(entry.name):
            remove_partial(entry)


def refuse_links_out(folder: Path) -> None:
    """Refuse an output folder with a link that leads out of it: what is written there would land elsewhere."""
    root = os.path.realpath(folder)
    for parent, folders, files in os.walk(folder):
        for path in (os.path.join(parent, name) for name in (*folders, *files)):
            if os.path.islink(path) and os.path.commonpath([root, os.path.realpath(path)]) != root:
                raise UserError(
                    f"{path} is a link that leads out of {folder}, so files would be written elsewhere; remove the "
                    "link, or name another folder"
                )


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON atomically, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if os.name == "nt":
        if path.is_dir():
            return  # Windows cannot flush a folder
        descriptor = os.open(path, os.O_RDWR)
    else:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reserve(path: Path) -> None:
    """Allocate a sparse file on disk before it is mapped: on a full disk, writing to its pages ends the process."""
    if hasattr(os, "posix_fallocate"):  # not on macOS and Windows
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file without a UTF-8 byte order mark."""
    try:
        return path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except FileNotFoundError as cause:
        raise DataError(f"{path} does not exist; check the folder and the spelling") from cause
    except OSError as cause:
        raise DataError(f"{path} cannot be read ({cause.strerror}); check that it is a file you may open") from cause


def read_json(path: Path) -> Any:
    """Return the content of a UTF-8 JSON file; raise `DataError` with path and line if it is damaged."""
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
    except (ValueError, RecursionError) as cause:
        raise DataError(
            f"{path} is not readable JSON: a number has thousands of digits, or tables are nested thousands deep; "
            "correct or make it again"
        ) from cause


def read_json_or_empty(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file that can be made again; an empty one if it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def check_version(found: object, *, newest: int, where: Path, oldest: int = 1) -> None:
    """Refuse a file or folder of ours that this version does not read.

    Args:
        found: the version number in it; None for what 0.1 wrote without one, which is version 1.
    """
    number = 1 if found is None else found
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise DataError(f"{where} is damaged: its version is {number!r:.40}; copy or make it again")
    if number > newest:
        raise UserError(
            f"{where} was written by a newer version of sremkit (its version is {number}, this one reads up to "
            f"{newest}); install a newer one with: pip install -U sremkit"
        )
    if number < oldest:
        raise UserError(
            f"{where} was written by an older version of sremkit (its version is {number}, this one reads from "
            f"{oldest}); make it again, or read it with that version"
        )


def first_line(cause: BaseException) -> str:
    """The first line of an error's message, or its name where it has none."""
    return (str(cause) or type(cause).__name__).split("\n")[0]


def digest(content: Any, *, length: int = 16) -> str:
    """Return the first hex digits of a SHA-256 of bytes, of text, or of anything else as JSON with sorted keys."""
    if isinstance(content, str):
        content = content.encode()
    elif not isinstance(content, bytes):
        content = json.dumps(content, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()[:length]


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def try_lock(file: IO[Any]) -> bool:
    """Lock an open file for this process until it is closed; return whether no other process holds the lock.

    The lock is not inherited by worker processes, which may outlive a killed parent. Where the system or the file
    system has no such locks (Windows, some network drives), the file counts as free.
    """
    if fcntl is None:
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as cause:
        return cause.errno not in (errno.EACCES, errno.EAGAIN)
    return True


@contextmanager
def sole_writer(lock: Path, refusal: str) -> Iterator[None]:
    """Inside, no other process may enter with the same lock file; a second one is refused with a `UserError`.

    The lock ends with the process, also with a killed one. The file is removed at the end.
    """
    while True:
        if lock.is_symlink():
            lock.unlink()
        with lock.open("a") as file:
            if not try_lock(file):
                raise UserError(refusal)
            if not _is_file_at(file, lock):
                continue  # the process before removed it after it was opened here
            try:
                yield
            finally:
                with suppress(OSError):  # Windows removes no open file
                    lock.unlink()
            return


def _is_file_at(file: IO[Any], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
