"""Which process this is: alone, or one of several started by torchrun or accelerate."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from sremkit.errors import UserError
from sremkit.extras import require
from sremkit.recipes import DEVICES, DEVICES_IN_WORDS
from sremkit.training.trouble import StoppedError


@dataclass(frozen=True)
class Process:
    """This process among those that train together."""

    rank: int
    world: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0


def this_process(device: str = "auto") -> Process:
    """Find out how this process was started, and join the others if there are any."""
    _check_device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return Process(rank=0, world=1, device=torch.device(device))
    accelerate = require("accelerate", extra="train", purpose="train in several processes")
    state = accelerate.PartialState(cpu=device == "cpu" or not torch.cuda.is_available())
    return Process(rank=state.process_index, world=state.num_processes, device=state.device)


@contextmanager
def joined(device: str = "auto") -> Iterator[Process]:
    """This process among the others, which it leaves in good order at the end.

    The threads of the collectives must end before the interpreter does: one that still wants to give back a
    Python object then would abort the whole process, after all its work is done. A process that has nothing left to do
    leaves so soon after its last collective that this happened now and then; so all wait for the slowest, also where
    all have been stopped.
    """
    try:
        try:
            yield this_process(device)
        except StoppedError:
            _wait_for_all()
            raise
        _wait_for_all()
    finally:
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


def _wait_for_all() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def _check_device(device: str) -> None:
    """Refuse a device that there is not, before anything is read or built for it."""
    if not DEVICES.fullmatch(device):
        raise UserError(f"there is no device called '{device}'; choose {DEVICES_IN_WORDS}")
    instead = "use the processor: training.device=cpu, or --device cpu in an evaluation"
    if device == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"the device 'mps' was asked for, but no MPS device was found; {instead}")
    if not device.startswith("cuda"):
        return
    if not torch.cuda.is_available():
        raise UserError(f"the device '{device}' was asked for, but no CUDA device was found; {instead}")
    count, number = torch.cuda.device_count(), int(device.partition(":")[2] or 0)
    if number >= count:
        raise UserError(
            f"the device '{device}' was asked for, but there are {count} CUDA devices; count from cuda:0"
        )
