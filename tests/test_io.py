"""Files are complete or absent; JSON names its damage; digests are short and stable."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from sremkit.errors import DataError
from sremkit.io import atomic_write, digest, read_json, read_json_or_empty, try_lock


@pytest.mark.parametrize("content", ["né\n", "né\n".encode(), lambda path: path.write_bytes("né\n".encode())])
def test_text_bytes_and_writers_replace_the_file(tmp_path: Path, content) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    atomic_write(target, content)
    assert target.read_bytes() == "né\n".encode()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_failed_write_leaves_the_old_file_and_no_partial_one(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        atomic_write(target, fail)
    assert target.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_writer_sees_the_suffix_of_its_file(tmp_path: Path) -> None:
    seen: list[str] = []
    atomic_write(tmp_path / "a.npy", lambda path: (seen.append(path.suffix), path.touch()))
    assert seen == [".npy"]


def test_damaged_json_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(DataError, match="does not exist"):
        read_json(path)
    path.write_text('{"a": 1,\n"b": }')
    with pytest.raises(DataError, match="line 2: not valid JSON"):
        read_json(path)
    path.write_bytes(b'\n\n"\xff"')
    with pytest.raises(DataError, match="line 3: not UTF-8"):
        read_json(path)
    assert read_json_or_empty(path) == {}
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(path) == {"a": 1}


def test_json_that_can_be_made_again_is_empty_when_missing_or_no_object(tmp_path: Path) -> None:
    assert read_json_or_empty(tmp_path / "a.json") == {}
    (tmp_path / "a.json").write_text("[1]")
    assert read_json_or_empty(tmp_path / "a.json") == {}
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert read_json_or_empty(tmp_path / "a.json") == {"a": 1}


def test_a_digest_is_the_beginning_of_the_sha256() -> None:
    assert digest("a") == digest(b"a") == hashlib.sha256(b"a").hexdigest()[:16]
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1}) == digest('{"a": 2, "b": 1}')
    assert len(digest("a", length=64)) == 64


def test_a_lock_excludes_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    code = f"from sremkit.io import try_lock; print(try_lock(open({str(path)!r}, 'r+b')))"

    def other() -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    with path.open("r+b") as file:
        assert try_lock(file)
        assert other() == "False\n"
    assert other() == "True\n"


def test_the_module_imports_without_fcntl() -> None:
    code = "import sys; sys.modules['fcntl'] = None; import sremkit.io, sremkit.features.store"
    subprocess.run([sys.executable, "-c", code], check=True)
