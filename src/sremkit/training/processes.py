"""Which process this is: alone, or one of several started by torchrun or accelerate."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from sremkit.extras import require


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
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return Process(rank=0, world=1, device=torch.device(device))
    accelerate = require("accelerate", extra="train", purpose="train in several processes")
    state = accelerate.PartialState(cpu=device == "cpu" or not torch.cuda.is_available())
    return Process(rank=state.process_index, world=state.num_processes, device=state.device)
