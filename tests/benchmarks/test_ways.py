"""A training pair passes few files of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_a_training_pair_passes_at_most_30_files() -> None:
    command = [sys.executable, "-m", "benchmarks.ways", "train", "dual"]
    files = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split()
    assert {"data/formats/table.py", "data/batches.py", "models/backbones/dual.py", "objectives/srem.py",
            "training/step.py"} <= set(files)  # fmt: skip
    assert len(files) <= 30
