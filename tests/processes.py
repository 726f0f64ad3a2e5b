"""Whether a process that a test has started, or left behind, is still there."""

from __future__ import annotations

from pathlib import Path


def is_alive(pid: str) -> bool:
    """Whether the process runs, as /proc says; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
