"""Two computations at the same time, where a step is recorded on a CUDA device.

A recurrent network is a chain of small kernels that leaves most of the device idle. What does not need its result
can run meanwhile, on another stream: forward, and backward too, because gradients are computed on the stream of what
they belong to. A recording keeps it as two branches. Launched one by one both would wait for the host, so nothing is
changed there, and random numbers are drawn in the same order in either case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor

First = TypeVar("First")
Second = TypeVar("Second")


def at_once(
    first: Callable[[], First],
    second: Callable[[], Second],
    *,
    device: torch.device,
    tensors_of: Callable[[First], Iterable[Tensor]],
) -> tuple[First, Second]:
    """The results of both on this device, neither of which may need what the other one does.

    Args:
        tensors_of: the tensors of the first result, whose memory is made on the one stream and read on the other.
    """
    if not _recording_on(device):
        return first(), second()
    here, aside = torch.cuda.current_stream(device), _stream_aside(device)
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        found = first()
    other = second()
    here.wait_stream(aside)
    for tensor in tensors_of(found):
        tensor.record_stream(here)  # or the other stream would use its memory again as soon as it is free
    return found, other


def _recording_on(device: torch.device) -> bool:
    if device.type != "cuda" or torch.compiler.is_compiling():
        return False
    return torch.cuda.is_current_stream_capturing()


@functools.cache
def _stream_aside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
