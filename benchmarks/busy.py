"""Training steps next to a busy process, against the same steps without it.

    python -m benchmarks.busy                     # SGR and SAF, width 128, batch 128
    python -m benchmarks.busy sgr --waiting spin  # as torch does by default

With two cores and one busy process at most half of the machine is left, so a step may take twice as long; the exit code
is 1 if one takes more than 2.5 times as long. Each measurement has a process of its own. Quiet and busy steps are
measured in turns, because other work on the machine changes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.commands import make_parser, run_command
from benchmarks.steps import contrastive_backward, make_batch, model_options
from sremkit.bench.grid import run_in_subprocess
from sremkit.models import build_matcher
from sremkit.threads import usable_threads

LIMIT = 2.5
SIZES = {
    "vocab_size": 8481, "image_dim": 128, "embed_size": 128, "word_dim": 64, "sim_dim": 128, "num_regions": 12,
}  # fmt: skip
REGIONS = 12
WAITING = {"sleep": "PASSIVE", "spin": "ACTIVE"}  # OMP_WAIT_POLICY


@contextmanager
def busy_process() -> Iterator[None]:
    """Inside, another process uses one core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(name: str, batch_size: int, steps: int) -> dict[str, Any]:
    """Median seconds of a training step with the number of threads that a training would use."""
    torch.set_num_threads(usable_threads())
    torch.manual_seed(0)
    matcher = build_matcher(name, **model_options(name, SIZES)).train()
    optimizer = torch.optim.Adam(matcher.parameters(), lr=2e-4, fused=True)
    batch = make_batch(name, batch_size, regions=REGIONS, image_dim=SIZES["image_dim"])
    seconds = []
    for _ in range(steps + 1):
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        contrastive_backward(matcher.logits_and_losses(batch)[0])
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    return {"seconds": statistics.median(seconds[1:]), "threads": torch.get_num_threads()}


def compare(name: str, *, batch_size: int, steps: int, rounds: int) -> dict[str, Any]:
    """Quiet and busy steps in turns: the median of the rounds of each, and their ratio."""
    found: dict[str, list[float]] = {"quiet": [], "busy": []}
    threads = {}
    for _ in range(rounds):
        for label, times in found.items():
            if label == "busy":
                with busy_process():
                    measured = run_in_subprocess(measure, name, batch_size, steps)
            else:
                measured = run_in_subprocess(measure, name, batch_size, steps)
            times.append(measured["seconds"])
            threads[label] = measured["threads"]
    quiet, busy = (statistics.median(times) for times in found.values())
    return {"name": name, "quiet": quiet, "busy": busy, "ratio": busy / quiet, "threads": threads}


def describe(row: dict[str, Any]) -> str:
    threads, verdict = row["threads"], "" if row["ratio"] <= LIMIT else f"  more than {LIMIT:g}"
    return (
        f"{row['name']:5} {row['quiet']:8.3f} s quiet ({threads['quiet']} threads)  {row['busy']:8.3f} s busy "
        f"({threads['busy']} threads)  {row['ratio']:5.2f} times{verdict}"
    )


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("busy", __doc__)
    parser.add_argument("backbones", nargs="*", default=["sgr", "saf"], help="backbones (default: sgr saf)")
    parser.add_argument("--batch-size", type=int, default=128, help="pairs of a step")
    parser.add_argument("--steps", type=int, default=5, help="steps of a measurement, after one that is not counted")
    parser.add_argument("--rounds", type=int, default=1, help="measurements of each")
    parser.add_argument("--waiting", choices=list(WAITING), default="sleep", help="what waiting OpenMP threads do")
    return parser


def run(args: argparse.Namespace) -> int:
    os.environ["OMP_WAIT_POLICY"] = WAITING[args.waiting]  # of the processes that measure
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    print(
        f"{cores} cores, load {load:.1f} at the start, torch {torch.__version__}, batch {args.batch_size}", flush=True
    )
    failed = False
    for name in args.backbones:
        row = compare(name, batch_size=args.batch_size, steps=args.steps, rounds=args.rounds)
        print(describe(row), flush=True)
        failed |= row["ratio"] > LIMIT
    return int(failed)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(build_parser(), run, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
