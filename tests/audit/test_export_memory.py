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

FEW, MANY = (
    150_000,
    900_000,
)  # rows of about 160 bytes: as Python objects the difference would be 300 MB and more
# What is freed goes back to the system at once; else the allocators keep some tens of megabytes.
GIVE_BACK = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
SCRIPT = r"""
import re, sys
from pathlib import Path
from sremkit.audit.export import export
from sremkit.audit.scoring.cutoff import CutoffRule
what, folder, out = sys.argv[1:]
counts = export(folder, out, format=what, cutoff=CutoffRule(fraction=0.25))
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


def exported(what: str, folder: Path, out: Path) -> tuple[int, int]:
    """How many rows were written, and the most memory that it took, in megabytes."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, what, str(folder), str(out)],
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
    written, megabytes = run.stdout.split()
    return int(written), int(megabytes)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_memory_does_not_grow_with_the_number_of_pairs(tmp_path: Path) -> None:
    audits = {rows: write_audit(tmp_path / str(rows), rows) for rows in (FEW, MANY)}
    for what in ("keep-list", "csv", "parquet"):
        taken = {}
        for rows, folder in audits.items():
            written, taken[rows] = exported(what, folder, tmp_path / f"{rows}-{what}")
            assert written == 3 * rows // 4
        assert taken[MANY] - taken[FEW] < 40, f"{what}: {taken}"
