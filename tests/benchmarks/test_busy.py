"""Steps next to a busy process: the comparison, not the times."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks import busy


def test_a_step_is_measured() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = busy.measure("saf", 4, 1)
    finally:
        torch.set_num_threads(before)
    assert found["seconds"] > 0
    assert found["threads"] == 1


@pytest.mark.parametrize(("slower", "code"), [(2.0, 0), (3.0, 1)])
def test_too_slow_a_step_gives_an_exit_code(
    slower: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_busy = False

    class Busy:
        def __enter__(self) -> None:
            nonlocal is_busy
            is_busy = True

        def __exit__(self, *_: object) -> None:
            nonlocal is_busy
            is_busy = False

    def measured(work: object, *args: object) -> dict[str, Any]:
        return {"seconds": slower if is_busy else 1.0, "threads": 2}

    monkeypatch.setattr(busy, "busy_process", Busy)
    monkeypatch.setattr(busy, "run_in_subprocess", measured)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert busy.main(["saf", "--rounds", "2"]) == code
    out = capsys.readouterr().out
    assert f"{slower:.2f} times" in out
    assert ("more than 2.5" in out) is (code == 1)
