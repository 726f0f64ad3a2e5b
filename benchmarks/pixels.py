"""Speed and quality of training on pixels: decoding, the step, the wait for data, and R_sum by method and noise.

    python -m benchmarks.pixels decode step recall -o runs/pixels    # all of it
    python -m benchmarks.pixels decode    # images/s by workers, with and without a cache
    python -m benchmarks.pixels step      # pairs/s, and the share of the time in which the step waits for data
    python -m benchmarks.pixels recall    # R_sum of InfoNCE, SREM, SREM-plus at 0 and 40 %
    python -m benchmarks.pixels step recall --steps 2 --epochs 2 --warmup-epochs 1 --image-size 32   # to try it

On Flickr8k's photographs (AVIF in tar archives, $SREMKIT_DATA/flickr8k) with the small ViT. Each part writes its rows
into OUT/PART.csv as they are measured.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.commands import make_parser, run_command
from sremkit.bench.grid import run_grid, write_csv
from sremkit.config.recipes import Recipe, recipe_from_table
from sremkit.data.decoder import Decoder
from sremkit.data.formats import read_pairs
from sremkit.data.image_transform import ImageTransform
from sremkit.data.images import SelectedImages
from sremkit.data.pixels import PixelReading
from sremkit.data.prefetch import prefetch
from sremkit.data.training_pairs import resolve_source
from sremkit.experiment import make_batches, prepare
from sremkit.methods import METHODS
from sremkit.training.step import OptimizerStep
from sremkit.worker_processes import usable_cores

SOURCE = "$SREMKIT_DATA/flickr8k"
RECALL_COLUMNS = ("test_rsum", "val_rsum", "last_val_rsum", "best_epoch", "epochs", "warmup_epochs", "train_auroc",
                  "selected_wrong", "noisy_pull_ratio", "seconds_per_epoch", "seconds", "peak_memory_mb", "device",
                  "precision", "cuda_graphs")  # fmt: skip
METHOD_OPTIONS: dict[str, dict[str, Any]] = {
    "infonce": {},
    "srem": {"complementary_weight": 0.1, "warmup_power": 0.3},
    "srem-plus": {"complementary_weight": 0.0, "decay": 0.85, "warmup_power": 0.3},
}


def recipe(method: str, *, rate: float, args: argparse.Namespace, cache: str = "auto") -> Recipe:
    """The small ViT on Flickr8k's photographs."""
    warmup = args.warmup_epochs if METHODS[method].has_warmup else 0
    table = {
        "name": f"flickr8k-pixels-{method}",
        "data": {
            "source": args.source,
            "options": {"features": "pooled"},
            "pixel_cache": cache,
        },
        "noise": {"rate": rate, "seed": args.seed},
        "model": {"name": "vit", "image_size": args.image_size, "patch_size": args.patch_size},
        "method": {"name": method, **METHOD_OPTIONS[method]},
        "training": {
            "epochs": args.epochs - warmup,
            "warmup_epochs": warmup,
            "decay_after": 0 if warmup else max(1, round(0.75 * args.epochs)),  # after a warm-up, at its end
            "batch_size": args.batch_size,
            "learning_rate": args.learning_rate,
            "min_crop_area": 0.5,
            "precision": args.precision,
            "workers": 4,
            "seed": args.seed,
        },
    }
    return recipe_from_table(table, args.overrides)


def measure_decoding(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Images per second of one pass, by workers; then of passes over the cache that it filled."""
    pairs = read_pairs(Path(resolve_source(args.source)), split="train")
    assert pairs.images is not None
    images = SelectedImages(pairs.images, np.arange(min(args.images, len(pairs.images))))
    transform = ImageTransform(args.image_size, args.image_size, shortest_edge=args.image_size)
    setting = {"image_size": args.image_size, "cores": usable_cores()}
    for workers in args.worker_counts:
        decoder = Decoder(images, transform, workers=workers)
        started = time.perf_counter()
        for _ in decoder.stream():
            pass
        seconds = time.perf_counter() - started
        decoder.close()
        yield {"what": "decoding", "workers": workers, "images_per_second": len(images) / seconds, **setting}
    with tempfile.TemporaryDirectory() as folder:
        cached = PixelReading(cache=folder).open(images, transform)
        order = np.random.default_rng(0).permutation(len(images))
        parts = np.array_split(order, max(1, len(order) // 128))
        for _ in range(2):  # the second pass finds the pages in memory
            started = time.perf_counter()
            for part in parts:
                cached.rows(part)
            seconds = time.perf_counter() - started
        yield {"what": "cache, normalised", "workers": 0, "images_per_second": len(images) / seconds, **setting}


def measure_steps(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Pairs per second of one epoch, and the share of its time in which the step waited for a batch."""
    for cache in ("auto", "off"):
        prepared = prepare(recipe("srem", rate=0.4, args=args, cache=cache))
        device, batches = prepared.process.device, make_batches(prepared)
        matcher = prepared.matcher.to(device)
        step = OptimizerStep(matcher, prepared.method, prepared.recipe.training, device=device)
        waited, pairs, started = 0.0, 0, 0.0
        order = batches.own_order(0)[: args.steps + args.warm_steps]
        arrives = time.perf_counter()
        for number, batch in enumerate(prefetch(batches, order, device)):
            if number == args.warm_steps:
                _synchronize(device)
                started, waited = time.perf_counter(), 0.0
            elif number > args.warm_steps:
                waited += time.perf_counter() - arrives
            step(batch, warmup=False)
            _synchronize(device)  # else the wait for the device would count as one for data
            pairs += len(batch) if number >= args.warm_steps else 0
            arrives = time.perf_counter()
        seconds = time.perf_counter() - started
        yield {"what": f"training, cache {cache}", "device": str(device), "cores": usable_cores(),
               "batch_size": args.batch_size, "pairs_per_second": pairs / seconds,
               "waiting_share": waited / seconds}  # fmt: skip


def measure_recall(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """R_sum on the test split, of `--jobs` runs at a time; finished ones are kept in OUT/recall.cells."""
    settings = " ".join(args.overrides)
    cells = [
        (
            {"method": method, "noise": rate, "seed": args.seed, "settings": settings},
            recipe(method, rate=rate, args=args),
        )
        for rate in args.rates
        for method in args.methods
    ]
    for row in run_grid(cells, args.out / "recall.cells", jobs=args.jobs):
        yield {name: row[name] for name in ("method", "noise", "seed", "settings", *RECALL_COLUMNS)}


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "decode": measure_decoding,
    "step": measure_steps,
    "recall": measure_recall,
}


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("pixels", __doc__)
    parser.add_argument("parts", nargs="+", choices=list(PARTS), help="what to measure")
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/pixels"), help="folder to write")
    parser.add_argument("--images", type=int, default=2000, help="images that `decode` reads")
    parser.add_argument("--worker-counts", type=int, nargs="+", default=[0, 1, 2], help="processes that decode")
    parser.add_argument("--image-size", type=int, default=96, help="pixels along one side")
    parser.add_argument("--patch-size", type=int, default=16, help="pixels along one side of a patch")
    parser.add_argument("--batch-size", type=int, default=256, help="pairs")
    parser.add_argument("--steps", type=int, default=100, help="measured by `step`")
    parser.add_argument("--warm-steps", type=int, default=5, help="before them")
    parser.add_argument("--epochs", type=int, default=40, help="of a run, warm-up included")
    parser.add_argument("--warmup-epochs", type=int, default=10, help="of a method that has a warm-up")
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="of all methods")
    parser.add_argument("--precision", default="auto", help="auto, float32, tf32 or bf16")
    parser.add_argument("--methods", nargs="+", default=list(METHOD_OPTIONS), choices=list(METHOD_OPTIONS))
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0, 0.4], help="shares of wrong captions")
    parser.add_argument("--seed", type=int, default=0, help="of training and noise")
    parser.add_argument("--jobs", type=int, default=1, help="runs of `recall` at a time")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
                        help="change the recipe of all methods")  # fmt: skip
    parser.add_argument("--source", default=SOURCE, help="folder of the collection")
    return parser


def run(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    for part in args.parts:
        rows = []
        for row in PARTS[part](args):
            print(row, flush=True)
            rows.append(row)
            write_csv(rows, args.out / f"{part}.csv")


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(build_parser(), run, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
