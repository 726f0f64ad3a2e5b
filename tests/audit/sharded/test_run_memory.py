"""Memory does not grow with the number of pairs: each shard is dropped before the next one comes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("jinja2")

TESTS = Path(__file__).parents[2]
ROWS, WIDTH = 3000, 256  # a shard: 6 MB of vectors
# What is freed goes back to the system at once. Otherwise the allocators keep some tens of megabytes, more with every
# shard until about the fortieth, and the measurement would be one of theirs.
GIVE_BACK = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
SCRIPT = r"""
import re, sys
from pathlib import Path
from sharded import small_plan
from sremkit.audit.sharded import merge
from sremkit.audit.sharded.run import audit_shards
from sremkit.audit.sharded.plan import list_embeddings

merge.MAX_PAGE_ROWS = 1000
root = Path(sys.argv[1])
plan = small_plan(root / "out", list_embeddings(root / "images", root / "texts"), max_train_pairs=1500)
assert audit_shards(plan).summary["pairs"] == int(sys.argv[2])
# Not ru_maxrss: that one starts from what the parent held, which may be more than this program ever needs.
peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
print(int(peak.group(1)) // 1024)
"""


def write_shards(root: Path, shards: int) -> int:
    rng = np.random.default_rng(0)
    maps = [rng.normal(size=(8, WIDTH)) for _ in range(2)]
    for number in range(shards):
        meaning = rng.normal(size=(ROWS, 8))
        for name, view in zip(("images", "texts"), maps, strict=True):
            (root / name).mkdir(parents=True, exist_ok=True)
            rows = meaning @ view + 0.5 * rng.normal(size=(ROWS, WIDTH))
            np.save(root / name / f"{number:03d}.npy", rows.astype(np.float32))
    return shards * ROWS


def peak_megabytes(root: Path, shards: int) -> int:
    pairs = write_shards(root, shards)
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root), str(pairs)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
            "OMP_NUM_THREADS": "1",
            **GIVE_BACK,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return int(run.stdout.split()[-1])


def test_peak_memory_does_not_grow_with_the_number_of_shards(tmp_path: Path) -> None:
    few, many = peak_megabytes(tmp_path / "few", 3), peak_megabytes(tmp_path / "many", 18)
    # Fifteen shards more are 90 MB of vectors, and as much again as the witnesses see them.
    assert many - few < 20, (few, many)
