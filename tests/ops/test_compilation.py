"""The kernels compile for the GPU they are meant for, also where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MOST_SHARED = 227 * 1024  # bytes that one block may have on an H200


def test_every_kernel_compiles_for_an_h200_and_fits_its_shared_memory() -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    program = Path(__file__).with_name("ahead_of_time.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    run = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
    shared = json.loads(run.stdout.splitlines()[-1])
    assert len(shared) >= 18
    assert {name: size for name, size in shared.items() if size > MOST_SHARED} == {}
