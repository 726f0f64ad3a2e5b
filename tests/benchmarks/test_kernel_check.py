"""The check before every measurement accepts all kernels and rejects a wrong one."""

from __future__ import annotations

import pytest

from benchmarks import kernel_check
from sremkit.ops.triton import graph_step

pytest.importorskip("triton", reason="the kernels need Triton")


@pytest.mark.skipif(not kernel_check.can_check("cpu"), reason="the kernels need TRITON_INTERPRET=1 on a CPU")
def test_every_kernel_is_accepted_and_a_wrong_one_is_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernel_check, "SHAPES", kernel_check.SHAPES[:1])
    assert kernel_check.check_kernels("cpu")
    right = graph_step.relu_linear
    monkeypatch.setattr(graph_step, "relu_linear", lambda x, w, b: right(x, w, 1.5 * b))
    assert not kernel_check.check_kernels("cpu")
    lines = capsys.readouterr().out.splitlines()
    rejected = [line.split()[1] for line in lines if not line.startswith("right")]
    assert set(rejected) == {"relu_linear"}
