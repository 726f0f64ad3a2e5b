"""Fixtures of the kernel tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def _without_cudnn() -> Iterator[None]:
    """PyTorch's own recurrent layers: cuDNN's have no gradient in evaluation mode, no second one, and not
    float64 on every device."""
    with torch.backends.cudnn.flags(enabled=False):
        yield
