"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():  # kernels are then interpreted; Triton must know before its import
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data, or a skip with the reason."""
    root = Path(os.environ.get("SREMKIT_DATA", REPOSITORY / ".." / "shared" / "data"))
    if not root.is_dir():
        pytest.skip(f"no real data: SREMKIT_DATA is not set and {root} does not exist")
    return root
