"""What differs on macOS and Windows: locks, memory, flushing, renaming, start methods; by replacing what they lack."""

from __future__ import annotations

import builtins
import errno
import math
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from sremkit import io, worker_processes
from sremkit.errors import UserError
from sremkit.experiment import memory
from sremkit.features import extract
from sremkit.io import atomic_write, atomic_write_folder, fsync, remove_partials_of, reserve, sole_writer, try_lock


def test_without_fcntl_every_file_counts_as_free(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(io, "fcntl", None)
    with (tmp_path / "a").open("w") as one, (tmp_path / "a").open("w") as other:
        assert try_lock(one)
        assert try_lock(other)


@pytest.mark.parametrize(("code", "is_free"), [(errno.EAGAIN, False), (errno.EACCES, False), (errno.ENOLCK, True)])
def test_a_file_system_without_locks_counts_as_free(tmp_path: Path, monkeypatch, code: int, is_free: bool) -> None:
    def lockf(file: object, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(io, "fcntl", SimpleNamespace(lockf=lockf, LOCK_EX=2, LOCK_NB=4))
    with (tmp_path / "a").open("w") as file:
        assert try_lock(file) == is_free


def test_a_lock_file_that_cannot_be_removed_is_used_again(tmp_path: Path, monkeypatch) -> None:
    """Windows removes no file that is open."""

    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, "in use", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        with sole_writer(tmp_path / ".lock", "no"):
            pass
    assert (tmp_path / ".lock").exists()
    with sole_writer(tmp_path / ".lock", "no"):
        pass
    assert not (tmp_path / ".lock").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    code = f"from sremkit.io import *\nwith sole_writer(Path({str(lock)!r}), 'told'): print('in')"

    def other() -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr.splitlines()[-1] if done.returncode else done.stdout

    with sole_writer(lock, "told"):
        assert other() == "sremkit.errors.UserError: told"
    assert other() == "in\n"
    assert not lock.exists()


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with sole_writer(tmp_path / ".lock", "no"):
        assert not (tmp_path / ".lock").is_symlink()
    assert not (tmp_path / "elsewhere").exists()


def test_windows_flushes_no_folder_and_opens_files_for_writing(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a").write_text("x")
    flags = []
    really = os.open
    monkeypatch.setattr(io.os, "open", lambda path, flag: (flags.append(flag), really(path, flag))[1])
    monkeypatch.setattr(io, "os", SimpleNamespace(**{**vars(os), "name": "nt"}))
    monkeypatch.setattr(io.os, "open", lambda path, flag: (flags.append(flag), really(path, flag))[1])
    fsync(tmp_path)
    assert flags == []
    fsync(tmp_path / "a")
    assert flags == [os.O_RDWR]


def test_memory_is_unknown_without_the_module_resource(monkeypatch) -> None:
    really = builtins.__import__

    def without(name: str, *arguments: object, **options: object) -> object:
        if name == "resource":
            raise ImportError(name)
        return really(name, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    assert math.isnan(memory.peak_memory_mb(torch.device("cpu")))


def test_macos_counts_memory_in_bytes(monkeypatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=3 * 2**20))
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert memory.peak_memory_mb(torch.device("cpu")) == 3
    monkeypatch.setattr(memory.sys, "platform", "linux")
    assert memory.peak_memory_mb(torch.device("cpu")) == 3 * 2**10


def test_without_sysconf_no_model_is_too_large(monkeypatch) -> None:
    monkeypatch.delattr(os, "sysconf")
    assert memory.physical_memory() == math.inf


def test_cores_are_counted_without_affinity(monkeypatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert worker_processes.usable_cores() == os.cpu_count()


def test_without_fallocate_nothing_is_reserved(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    reserve(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"x" * 10


def test_a_file_is_replaced_by_os_replace_and_a_refusal_leaves_the_old_one(tmp_path: Path, monkeypatch) -> None:
    """Windows refuses to replace a file that another program has open."""
    atomic_write(tmp_path / "a", "old")

    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, "in use", str(target))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(PermissionError):
        atomic_write(tmp_path / "a", "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_folder_is_complete_or_absent_and_leftovers_are_removed(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "a").write_text("x")
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        atomic_write_folder(tmp_path / "out", write)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".partial-12-out").mkdir()
    (tmp_path / ".partial-12-out" / "a").write_text("x")
    (tmp_path / ".partial-13-out").write_text("x")
    (tmp_path / ".partial-13-other-out").write_text("x")
    remove_partials_of(tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == [".partial-13-other-out"]


class Squares:
    """Of these numbers; at module level, because spawned workers import it."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, k: int) -> np.ndarray:
        return np.array(k * k)


@pytest.mark.parametrize("method", [m for m in ("spawn", "forkserver") if m in multiprocessing.get_all_start_methods()])
def test_workers_work_however_they_are_started(method: str) -> None:
    """macOS and Windows spawn them; from Python 3.14 on, Linux has a fork server."""
    loader = DataLoader(
        Squares(), batch_size=None, num_workers=1, multiprocessing_context=method,  # type: ignore[arg-type]
        worker_init_fn=worker_processes.init_worker, collate_fn=extract._identity,
    )  # fmt: skip
    assert [int(value) for value in loader] == [0, 1, 4]


def test_a_user_error_is_what_a_second_writer_gets(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(io, "try_lock", lambda file: False)
    with pytest.raises(UserError, match="told"), sole_writer(tmp_path / ".lock", "told"):
        pass
