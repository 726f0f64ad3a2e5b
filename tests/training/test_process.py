"""A device that is not there is told before anything is read for it."""

from __future__ import annotations

import pytest
import torch

from sremkit.errors import UserError
from sremkit.training.distributed import this_process


def test_without_cuda_the_processor_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "cuda:1"):
        with pytest.raises(UserError, match=rf"'{device}' .* no CUDA device was found; .*training\.device=cpu"):
            this_process(device)
    assert this_process("auto").device == torch.device("cpu")
    assert this_process("cpu").device == torch.device("cpu")


def test_a_number_beyond_the_last_cuda_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert this_process("cuda:1").device == torch.device("cuda", 1)
    with pytest.raises(UserError, match=r"'cuda:2' was chosen, but there are 2 CUDA devices"):
        this_process("cuda:2")


def test_mps_is_taken_only_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match="no MPS device was found"):
        this_process("mps")


def test_an_unknown_device_is_answered_with_those_there_are() -> None:
    with pytest.raises(UserError, match="there is no device called 'gpu'; choose auto, cpu, cuda"):
        this_process("gpu")
