"""Started by torchrun: a run of several processes is stopped, resumed, and compared with one that was not stopped.

Prints from the first process: whether the resumed run is equal, and whether it still is without the generator states of
the other processes, and the threads of collectives that outlive the process group. Batches of 15 pairs are uneven
shards of 8 and 7.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from sremkit.training.checkpoint import read_checkpoint, write_checkpoint
from sremkit.training.diagnostics import StoppedError
from sremkit.training.run_folder import RunFolder
from training import tiny
from training.test_resume import StopAfter


def train(folder: Path, *, stop_after: int | None = None) -> RunFolder:
    run = RunFolder(folder)
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    reporter = None if stop_after is None else StopAfter(stop_after)  # the first process alone gets the signal
    process = (dist.get_rank(), dist.get_world_size())
    tiny.tiny_trainer(run, batch_size=15, checkpoint_minutes=1e9, process=process, reporter=reporter).run()
    return run


def stopped(folder: Path) -> Path:
    try:
        train(folder, stop_after=18)  # seven batches an epoch: in the third one, after the warm-up
    except StoppedError:
        return folder
    raise AssertionError("the run was not stopped")


def are_equal(one: RunFolder, other: RunFolder) -> bool:
    (tensors, metrics), (other_tensors, other_metrics) = tiny.outcome(one), tiny.outcome(other)
    same_tensors = tensors.keys() == other_tensors.keys() and all(
        torch.equal(tensor, other_tensors[name]) for name, tensor in tensors.items()
    )
    return metrics == other_metrics and same_tensors


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    root, is_first = Path(sys.argv[1]), dist.get_rank() == 0
    whole = train(root / "whole")
    resumed = train(stopped(root / "stopped"))
    crippled = stopped(root / "crippled")
    if is_first:
        for checkpoint in list(crippled.glob("checkpoints/step-*")):
            tensors, facts = read_checkpoint(checkpoint)
            tensors["generator/cpu-1"] = tensors["generator/cpu"].clone()
            write_checkpoint(checkpoint, tensors, facts)
    dist.barrier()
    without = train(crippled)
    if is_first:
        generators = [name for name in tiny.outcome(whole)[0] if name.startswith("generator")]
        print("generators", *sorted(generators), flush=True)
        print("resumed", are_equal(whole, resumed), flush=True)
        print("crippled", are_equal(whole, without), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if is_first:
        names = (task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm"))  # of threads, on Linux
        print("threads", *sorted(name for name in names if "gloo" in name), flush=True)


if __name__ == "__main__":
    main()
