"""The benchmark of the objective runs, and the objective is fast."""

from __future__ import annotations

import re

import pytest
import torch

from benchmarks.objective import implementations, main, median_seconds


def test_the_benchmark_prints_a_ratio_for_every_implementation(capsys) -> None:
    main(["--batch-size", "16", "--repeats", "2", "--threads", "1", "--no-compile", "--reference"])
    head, *rows = capsys.readouterr().out.strip().split("\n")
    assert head.startswith("16 pairs, float32, 1 CPU threads")
    assert [re.split(r"\s{2,}", row)[0] for row in rows] == ["softmax", "SREM", "srem_reference"]
    assert all(re.search(r"\d+\.\d{3} ms +\d+\.\d\d x softmax$", row) for row in rows)


@pytest.mark.alone
def test_the_objective_costs_a_few_softmaxes() -> None:
    """Just under 4 at 4096 pairs on one thread; the bound leaves room for a busy machine, not for autograd's 30."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        medians = median_seconds(implementations(4096, "cpu", compiled=False), repeats=5, device="cpu")
    finally:
        torch.set_num_threads(before)
    assert medians["SREM"] < 6 * medians["softmax"]
