"""Speed of the objective, forward and backward, against one softmax of the logits, forward and backward.

    python -m benchmarks.objective                    on the CPU, 4096 pairs
    python -m benchmarks.objective --device cuda      on a GPU, 128 pairs

Implementations alternate, so that load on the machine affects all of them, and their medians are compared. On a GPU,
CUDA events measure the device's time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.commands import make_parser, run_command
from sremkit.objectives import SREM, srem_reference

Work = Callable[[], object]


def implementations(batch_size: int, device: str, *, compiled: bool = True, reference: bool = False) -> dict[str, Work]:
    """What is measured, by name; the first is the reference."""
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
    if reference:
        found["srem_reference"] = objective(lambda x: srem_reference(x).total)
    return found


def median_seconds(works: dict[str, Work], *, repeats: int, device: str) -> dict[str, float]:
    """Median time of each; every round runs all of them."""
    seconds = _device_seconds if device == "cuda" else _wall_seconds
    for work in works.values():
        for _ in range(3):  # compile, capture graphs, fill caches
            work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(seconds(work))
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
    """Forward and backward as one CUDA graph: the device's work without launch overhead."""

    def step() -> None:
        torch.autograd.grad(total(leaf), leaf)

    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):  # compile and warm up before the capture
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    size = args.batch_size or (4096 if args.device == "cpu" else 128)
    works = implementations(size, args.device, compiled=not args.no_compile, reference=args.reference)
    medians = median_seconds(works, repeats=args.repeats, device=args.device)
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"{args.threads} CPU threads"
    print(f"{size} pairs, float32, {where}, torch {torch.__version__}; forward and backward, median of {args.repeats}")
    for name, seconds in medians.items():
        print(
            f"{name:<{max(map(len, medians))}} {1000 * seconds:9.3f} ms   {seconds / medians['softmax']:6.2f} x softmax"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("objective", __doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch-size", type=int, help="pairs (default: 4096 on a CPU, 128 on a GPU)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--repeats", type=int, default=15, help="rounds; the median counts")
    parser.add_argument("--no-compile", action="store_true", help="omit torch.compile")
    parser.add_argument("--reference", action="store_true", help="also time the public functions with autograd")
    return run_command(parser, run, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
