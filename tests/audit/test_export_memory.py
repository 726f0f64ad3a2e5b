"""An export holds a piece of the table at a time, so its memory does not grow with the number of pairs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sremkit.audit.result_table import METADATA, write_table

pa = pytest.importorskip("pyarrow")

FEW, MANY = 60_000, 240_000  # rows of about 160 bytes: as Python objects the difference would be 140 MB
# What is freed goes back to the system at once; else the allocators keep some tens of megabytes.
GIVE_BACK = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
FORMATS = ("keep-list", "csv", "parquet")
SCRIPT = r"""
import contextlib, re, sys
from pathlib import Path
from sremkit.audit.export import export
from sremkit.audit.scoring.cutoff import CutoffRule
folder, out, *formats = sys.argv[1:]
for what in formats:
    with contextlib.suppress(OSError):  # without the right to it the peak is that of all formats so far
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    counts = export(folder, f"{out}-{what}", format=what, cutoff=CutoffRule(fraction=0.25))
    # Not ru_maxrss: that one also counts what the process was before it became this program, a copy of its parent.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(counts.written, int(peak[1]) // 1024)
"""


def write_audit(folder: Path, rows: int) -> Path:
    """The table of an audit with so many rows, every fourth of which scores low."""
    folder.mkdir()
    numbers = np.arange(rows)
    ids = [f"{k:032x}" for k in numbers]
    columns = {
        "id": ids,
        "image": [f"images/{k:020d}.jpg" for k in numbers],
        "text": [f"a caption of about a dozen words, as many have, with number {k:012d}" for k in numbers],
        "match_probability": np.where(numbers % 4 == 0, numbers / rows / 2, 0.5 + numbers / rows / 2),
        "is_mismatch": numbers % 4 == 0,
        "problem": pa.nulls(rows, pa.string()),
    }
    facts = {"own": {name: name for name in ("id", "image", "text")}, "source": {"format": "table"}}
    table = pa.table(columns).replace_schema_metadata({METADATA: json.dumps(facts).encode()})
    write_table(table, folder / "pairs.parquet")
    return folder


def exported(folder: Path, out: Path) -> list[tuple[int, int]]:
    """For each format how many rows were written, and the most memory that it took, in megabytes."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(out), *FORMATS],
        env={
            **os.environ,
            **GIVE_BACK,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return [(int(written), int(megabytes)) for written, megabytes in map(str.split, run.stdout.splitlines())]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_memory_does_not_grow_with_the_number_of_pairs(tmp_path: Path) -> None:
    taken = {}
    for rows in (FEW, MANY):
        found = exported(write_audit(tmp_path / str(rows), rows), tmp_path / f"out-{rows}")
        assert [written for written, _ in found] == [3 * rows // 4] * len(FORMATS)
        taken[rows] = [megabytes for _, megabytes in found]
    for name, few, many in zip(FORMATS, taken[FEW], taken[MANY], strict=True):
        assert many - few < 40, f"{name}: {taken}"
