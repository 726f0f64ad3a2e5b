"""Adapters in two real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ports import free_port

HERE = Path(__file__).parent
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def torchrun(script: Path) -> str:
    launcher = ["torch.distributed.run", "--nproc_per_node=2", "--master_addr=127.0.0.1"]
    command = [sys.executable, "-m", *launcher, f"--master_port={free_port()}", str(script)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


@pytest.mark.alone
def test_two_processes_compute_what_one_does_on_the_joined_batch() -> None:
    line = next(line for line in torchrun(HERE / "processes.py").splitlines() if line.startswith("differences"))
    loss, gradient, memory, smallest = map(float, line.split()[1:])
    assert loss < 1e-6
    assert gradient < 1e-6
    assert memory < 1e-6
    assert smallest < 0.5  # else no pair was found wrong, and nothing was compared
