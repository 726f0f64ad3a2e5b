"""The tiled objective for large batches of dual encoders: seconds, memory, and its error against `SREM` in float64.

    python -m benchmarks.tiles --batch-sizes 4096 32768 --width 512

Times `TiledSREM.from_embeddings`, forward and backward, on random unit vectors; the two vectors of a pair share a
component. Batches of up to `MAX_COMPARED` pairs are compared with `SREM` in float64 on the same vectors: the total, and
the gradient of both embeddings as one vector.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.commands import make_parser, run_command
from benchmarks.steps import median_seconds
from sremkit.bench.efficiency import describe_device
from sremkit.bench.grid import write_csv
from sremkit.errors import UserError
from sremkit.objectives import SREM
from sremkit.objectives.fast.tiled import TiledSREM
from sremkit.training.distributed import this_process

SCALE = 20.0  # of the cosines, as the dual encoder's
MAX_COMPARED = 8192  # SREM in float64 needs several matrices of 0.5 GB there
MIN_RUN_TIME = 0.5  # seconds


def measure_tiles(batch_size: int, width: int, device: torch.device) -> dict[str, Any]:
    """One row: seconds of forward and backward, peak memory beyond the vectors, errors for batches of moderate size."""
    images, texts = _embeddings(batch_size, width, device)
    tiled = TiledSREM()

    def step() -> Tensor:
        images.grad = texts.grad = None
        total = tiled.from_embeddings(images, texts, SCALE).total
        total.backward()
        return total.detach()

    total = step()  # warm-up
    gradient = _gradients(images, texts)
    row: dict[str, Any] = {"pairs": batch_size, "width": width, "device": describe_device(device)}
    row["seconds"], row["peak_gb"] = _cost(step, device)
    if batch_size <= MAX_COMPARED:
        exact, exact_gradient = _reference(images, texts)
        row["total_error"] = float((total.double() - exact).abs() / exact.abs())
        row["gradient_error"] = float((gradient.double() - exact_gradient).norm() / exact_gradient.norm())
    return row


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every size; print each row and write all as CSV."""
    rows: list[dict[str, Any]] = []
    for batch_size in args.batch_sizes:
        rows.append(measure_tiles(batch_size, args.width, args.device))
        print(describe(rows[-1]), flush=True)
        if args.out is not None:
            Path(args.out).parent.mkdir(parents=True, exist_ok=True)
            write_csv(rows, Path(args.out))
    return rows


def describe(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    cost = f"{row['pairs']:,} pairs of width {row['width']}: {1000 * row['seconds']:.1f} ms"
    if row["peak_gb"] is not None:
        cost += f", {row['peak_gb']:.2f} GB"
    if "total_error" in row:
        cost += f"; error against float64: total {row['total_error']:.1e}, gradient {row['gradient_error']:.1e}"
    return f"{cost} ({row['device']})"


def _embeddings(batch_size: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(batch_size, width, generator=generator)
    each = (shared + torch.randn(batch_size, width, generator=generator) for _ in range(2))
    images, texts = (F.normalize(x, dim=1).to(device).requires_grad_() for x in each)
    return images, texts


def _reference(images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
    images, texts = (x.detach().double().requires_grad_() for x in (images, texts))
    total = SREM().from_embeddings(images, texts, SCALE).total
    total.backward()
    return total.detach(), _gradients(images, texts)


def _gradients(images: Tensor, texts: Tensor) -> Tensor:
    assert images.grad is not None
    assert texts.grad is not None
    return torch.cat([images.grad, texts.grad]).clone()


def _cost(step: Callable[[], object], device: torch.device) -> tuple[float, float | None]:
    """Median seconds, and on a CUDA device the peak memory in GB beyond what was allocated before."""
    on_cuda = device.type == "cuda"
    if on_cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) if on_cuda else 0
    seconds = median_seconds(step, min_run_time=MIN_RUN_TIME, warmup=0)
    peak = (torch.cuda.max_memory_allocated(device) - before) / 1e9 if on_cuda else None
    return seconds, peak


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("tiles", __doc__)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[4096, 8192, 16384, 32768], help="pairs")
    parser.add_argument("--width", type=int, default=512, help="of the embeddings")
    parser.add_argument("--device", help="cuda where there is one, else cpu")
    parser.add_argument("-o", "--out", metavar="FILE", help="write the rows there as CSV, after each one")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    def measure(args: argparse.Namespace) -> None:
        if min(*args.batch_sizes, args.width) < 2:
            raise UserError("--batch-sizes and --width must be 2 or more")
        args.device = this_process(args.device or "auto").device
        run(args)

    return run_command(build_parser(), measure, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
