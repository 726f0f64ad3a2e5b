"""Memory that was used, and that there is."""

from __future__ import annotations

import math
import os
import sys

import torch


def peak_memory_mb(device: torch.device) -> float:
    """Peak memory so far in MiB: of the CUDA device, or of this process; NaN on Windows, which does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:
        return math.nan
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # macOS counts bytes, Linux KiB


def physical_memory() -> float:
    """Bytes of memory of this machine; infinity where the system does not say (Windows)."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return math.inf
