"""The objective for large batches of dual encoders, in tiles: seconds, memory, and how far it is from the plain one.

`srem bench tiles --batch-sizes 4096 32768 --width 512` computes `TiledSREM.from_embeddings`, forward and backward, on
random unit vectors of which each pair shares a part. Batches of up to `MOST_COMPARED` pairs are compared with plain
SREM in float64 on the same vectors: the total, and the gradient of both embeddings as one vector.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.bench.efficiency import describe_device
from sremkit.bench.grid import write_csv
from sremkit.objectives import SREM
from sremkit.objectives.tiled import TiledSREM
from sremkit.training.clock import now

SCALE = 20.0  # of the cosines, as the dual encoder's
MOST_COMPARED = 8192  # plain SREM in float64 holds several matrices of 0.5 GB there
REPEATS = 5


def measure_tiles(batch_size: int, width: int, device: torch.device) -> dict[str, Any]:
    """One row: seconds of forward and backward, the peak of memory beyond the vectors, errors where they are known."""
    images, texts = _embeddings(batch_size, width, device)
    tiled = TiledSREM()

    def step() -> Tensor:
        images.grad = texts.grad = None
        total = tiled.from_embeddings(images, texts, SCALE).total
        total.backward()
        return total.detach()

    total = step()  # not counted: libraries prepare themselves
    gradient = _joined(images, texts)
    row: dict[str, Any] = {"pairs": batch_size, "width": width, "device": describe_device(device)}
    row["seconds"], row["peak_gb"] = _cost(step, device)
    if batch_size <= MOST_COMPARED:
        exact, exact_gradient = _exactly(images, texts)
        row["total_error"] = float((total.double() - exact).abs() / exact.abs())
        row["gradient_error"] = float((gradient.double() - exact_gradient).norm() / exact_gradient.norm())
    return row


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every size, tell each as it comes, and write them as CSV."""
    rows: list[dict[str, Any]] = []
    for batch_size in args.batch_sizes:
        rows.append(measure_tiles(batch_size, args.width, args.device))
        print(in_words(rows[-1]), flush=True)
        if args.out is not None:
            Path(args.out).parent.mkdir(parents=True, exist_ok=True)
            write_csv(rows, Path(args.out))
    return rows


def in_words(row: dict[str, Any]) -> str:
    """A row as a line."""
    cost = f"{row['pairs']:,} pairs of width {row['width']}: {1000 * row['seconds']:.1f} ms"
    if row["peak_gb"] is not None:
        cost += f", {row['peak_gb']:.2f} GB"
    if "total_error" in row:
        cost += f"; from float64 total {row['total_error']:.1e}, gradient {row['gradient_error']:.1e}"
    return f"{cost} ({row['device']})"


def _embeddings(batch_size: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(batch_size, width, generator=generator)
    each = (shared + torch.randn(batch_size, width, generator=generator) for _ in range(2))
    images, texts = (F.normalize(x, dim=1).to(device).requires_grad_() for x in each)
    return images, texts


def _exactly(images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
    images, texts = (x.detach().double().requires_grad_() for x in (images, texts))
    total = SREM().from_embeddings(images, texts, SCALE).total
    total.backward()
    return total.detach(), _joined(images, texts)


def _joined(images: Tensor, texts: Tensor) -> Tensor:
    assert images.grad is not None
    assert texts.grad is not None
    return torch.cat([images.grad, texts.grad]).clone()


def _cost(step: Callable[[], object], device: torch.device) -> tuple[float, float | None]:
    """Median seconds, and on a CUDA device the peak of memory in GB beyond what lay there before."""
    on_cuda = device.type == "cuda"
    if on_cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) if on_cuda else 0
    times = []
    for _ in range(REPEATS):
        started = now(device)
        step()
        times.append(now(device) - started)
    peak = (torch.cuda.max_memory_allocated(device) - before) / 1e9 if on_cuda else None
    return statistics.median(times), peak
