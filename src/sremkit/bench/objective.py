"""Speed of the objective, forward and backward, beside one softmax of the logits, forward and backward.

    python -m sremkit.bench.objective                    on the CPU, 4096 pairs
    python -m sremkit.bench.objective --device cuda      on a GPU, 128 pairs

The ways to compute it take turns, so that a busy moment of the machine hits all of them, and the median of each is
compared. On a GPU the times are the device's own, taken between CUDA events.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from sremkit.objectives import (
    SREM,
    complementary,
    energy,
    energy_bound,
    select_clean,
    sensitivity,
    weighted_ranking,
)

Work = Callable[[], object]


def from_formulas(logits: Tensor) -> Tensor:
    """The same total from the public functions, differentiated by autograd: what the fast way saves."""
    directions = (logits, logits.T)
    weights = [sensitivity(rows, margin=0.2) for rows in directions]
    total = logits.new_zeros(())
    for rows, swapped in zip(directions, reversed(weights), strict=True):
        clean = select_clean(rows, 0.0)
        total = total + 0.5 * weighted_ranking(rows, swapped, clean, margin=0.2)
        total = total + 0.01 * energy_bound(energy(rows), clean)
        total = total + complementary(rows, clean, sharpness=1.0, offset=0.5)
    return total


def ways(batch_size: int, device: str, *, compiled: bool = True, formulas: bool = False) -> dict[str, Work]:
    """What is measured, by name; the first is the measure of the others."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch_size, batch_size, generator=generator) + 3 * torch.eye(batch_size)
    upstream = torch.randn(batch_size, batch_size, generator=generator).to(device)
    leaf = logits.to(device).requires_grad_()
    criterion = SREM(check_finite=False) if device == "cuda" else SREM()

    def softmax() -> None:
        leaf.grad = None
        leaf.softmax(dim=1).backward(upstream)

    def objective(total: Callable[[Tensor], Tensor]) -> Work:
        def run() -> None:
            leaf.grad = None
            total(leaf).backward()

        return run

    def eager(x: Tensor) -> Tensor:
        return criterion(x).total

    found: dict[str, Work] = {"softmax": softmax, "SREM": objective(eager)}
    if compiled:
        found["SREM, compiled"] = objective(torch.compile(eager, fullgraph=True))
        if device == "cuda":
            graphed = torch.compile(eager, fullgraph=True, mode="reduce-overhead")
            found["SREM, compiled with CUDA graphs"] = objective(_marking_steps(graphed))
            found["SREM, compiled, forward and backward in one CUDA graph"] = _captured(
                torch.compile(eager, fullgraph=True), leaf
            )
    if formulas:
        found["SREM, formulas and autograd"] = objective(from_formulas)
    return found


def median_seconds(works: dict[str, Work], *, repeats: int, device: str) -> dict[str, float]:
    """Median time of each, one after the other in every round."""
    watch = _device_seconds if device == "cuda" else _wall_seconds
    for work in works.values():
        for _ in range(3):  # compiles, records graphs, fills caches
            work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(watch(work))
    return {name: statistics.median(of_work) for name, of_work in times.items()}


def _wall_seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _device_seconds(work: Work) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def _marking_steps(total: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def marked(x: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # the last step's tensors may be overwritten
        return total(x)

    return marked


def _captured(total: Callable[[Tensor], Tensor], leaf: Tensor) -> Work:
    """Forward and backward recorded once and replayed: the device's own work, without the host's."""

    def step() -> None:
        torch.autograd.grad(total(leaf), leaf)

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # compile and warm up outside of the recording
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m sremkit.bench.objective", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch-size", type=int, help="pairs; 4096 on a CPU and 128 on a GPU without it")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--repeats", type=int, default=15, help="rounds, of which the median counts")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument(
        "--formulas", action="store_true", help="also time the public functions with autograd"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    size = options.batch_size or (4096 if options.device == "cpu" else 128)
    works = ways(size, options.device, compiled=not options.no_compile, formulas=options.formulas)
    medians = median_seconds(works, repeats=options.repeats, device=options.device)
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.threads} CPU threads"
    print(
        f"{size} pairs, float32, {where}, torch {torch.__version__}; forward and backward, median of {options.repeats}"
    )
    for name, seconds in medians.items():
        print(
            f"{name:<{max(map(len, medians))}} {1000 * seconds:9.3f} ms   {seconds / medians['softmax']:6.2f} x softmax"
        )


if __name__ == "__main__":
    main()
