"""The check that stands before every measurement finds all kernels right, and a wrong one wrong."""

from __future__ import annotations

import pytest

from sremkit.bench import kernel_check
from sremkit.kernels import node_linear

pytest.importorskip("triton", reason="the kernels need Triton")


@pytest.mark.skipif(not kernel_check.can_check("cpu"), reason="the kernels need TRITON_INTERPRET=1 on a CPU")
def test_every_kernel_is_found_right_and_a_wrong_one_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernel_check, "SHAPES", kernel_check.SHAPES[:1])
    assert kernel_check.check_kernels("cpu")
    right = node_linear.node_linear
    monkeypatch.setattr(node_linear, "node_linear", lambda x, w, b, *, relu: right(x, w, 1.5 * b, relu=relu))
    assert not kernel_check.check_kernels("cpu")
    lines = capsys.readouterr().out.splitlines()
    judged_wrong = [line.split()[1] for line in lines if not line.startswith("right")]
    assert set(judged_wrong) == {"node_linear"}
