"""The tiled objective over two real processes is that of one on the joined batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from objectives.fast.tiled_processes import CASES
from ports import free_port
from sremkit.objectives.fast.tiled import TiledSREM

SCRIPT = Path(__file__).with_name("tiled_processes.py")


@pytest.fixture(scope="module")
def printed() -> dict[str, list[float]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    command += ["--master_addr=127.0.0.1", f"--master_port={free_port()}", str(SCRIPT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    return {line.split()[0]: [float(x) for x in line.split()[1:]] for line in run.stdout.splitlines()}


@pytest.mark.parametrize("case", [name for name, *_ in CASES])
def test_loss_statistics_and_summed_gradients_are_those_of_one_process(case: str, printed: dict) -> None:
    loss, statistics, gradients, _, clean = printed[case]
    assert loss < 1e-9
    assert statistics < 1e-9
    assert gradients < 1e-9
    assert clean > 0 or case == "a-single-pair"  # else the ranking loss would be compared as 0 with 0


def test_no_process_computes_the_whole_matrix(printed: dict) -> None:
    largest = {name: int(numbers[3]) for name, numbers in printed.items() if name != "stopped"}
    # Even: three rows of 40 logits are 120 numbers, fewer than the joined embeddings of 40 · 5.
    assert largest["even"] <= 40 * 8
    assert largest["uneven"] <= 41 * 8
    assert largest["all-in-one-block"] == 14 * 27  # half of the rows; the other process has the rest


def test_a_nan_in_one_process_raises_in_all(printed: dict) -> None:
    assert printed["stopped"] == [2]


def test_without_a_process_group_it_raises() -> None:
    with pytest.raises(RuntimeError, match="needs a process group, and none is initialized"):
        TiledSREM(across_processes=True).from_embeddings(torch.ones(2, 3), torch.ones(2, 3), 1.0)
