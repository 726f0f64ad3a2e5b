"""What time it is for a device: the clock, read when it has nothing left to do."""

from __future__ import annotations

import time

import torch


def now(device: torch.device) -> float:
    """Seconds of a steady clock; a GPU is waited for, because it computes on after its work was handed over."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
