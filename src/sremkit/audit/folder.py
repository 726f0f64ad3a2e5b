"""The folder of an audit: its parts, of which kind it is, and who may write to it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sremkit.audit.result_table import BEGUN, VERSION
from sremkit.errors import UserError
from sremkit.io import check_version, read_json_or_empty, refuse_links_out, sole_writer

FEATURES, FOLDS, SHARDS = "features", "folds", "shards"  # the last only in a sharded audit


def begin_folder(out: Path, *, sharded: bool) -> dict[str, Any]:
    """Create the folder of an audit, or check that it holds one of the same kind; return its `audit.json`."""
    if out.is_file():
        raise UserError(f"{out} is a file; name a folder for the audit")
    out.mkdir(parents=True, exist_ok=True)
    refuse_links_out(out)
    before = read_json_or_empty(out / BEGUN)
    if not (out / BEGUN).is_file():
        others = [entry.name for entry in out.iterdir() if not entry.name.startswith(".")]
        if others:
            raise UserError(f"{out} holds other files, such as {min(others)}; name a new folder for the audit")
        return before
    check_version(before.get("version"), newest=VERSION, where=out / BEGUN)
    was_sharded = "sharded" in before or "by_shard" in before
    if not before:  # damaged
        was_sharded = (out / SHARDS).is_dir()
        if not was_sharded and not any((out / name).is_dir() for name in (FEATURES, FOLDS)):
            return before
    if was_sharded != sharded:
        kind = "with" if was_sharded else "without"
        raise UserError(f"{out} holds an audit that was made {kind} --sharded; name a new folder for this one")
    return before


def sole_auditor(out: Path, task: str = "") -> AbstractContextManager[None]:
    """Inside, no other process may write to this audit; tasks of a sharded one are named, and each may run once."""
    refusal = f"another process is at work in {out}; wait for it, or name another folder with --out"
    return sole_writer(out / f".lock{task}", refusal)
