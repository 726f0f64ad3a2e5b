"""Speed and quality of training on pixels: decoding, the step, the wait for data, and R_sum by method and noise.

    python -m benchmarks.pixels decode -o decode.csv    # images/s by workers, with and without a cache
    python -m benchmarks.pixels step -o step.csv        # pairs/s, share of the time that waits for data
    python -m benchmarks.pixels recall -o recall.csv    # R_sum of InfoNCE, SREM, SREM-plus at 0 and 40 %

On Flickr8k's photographs (AVIF in tar archives, $SREMKIT_DATA/flickr8k) with the small ViT. One row a measurement, in
CSV.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.commands import make_parser
from sremkit.config.recipes import Recipe, recipe_from_table, recipe_to_toml
from sremkit.data.decoder import Decoder
from sremkit.data.formats import read_pairs
from sremkit.data.image_transform import ImageTransform
from sremkit.data.images import SelectedImages
from sremkit.data.pixels import PixelReading
from sremkit.data.prefetch import prefetch
from sremkit.data.training_pairs import resolve_source
from sremkit.data.worker_processes import usable_cores
from sremkit.experiment import evaluate_runs, make_batches, prepare, train
from sremkit.methods import METHODS
from sremkit.training.run_folder import RunFolder
from sremkit.training.step import OptimizerStep

SOURCE = "$SREMKIT_DATA/flickr8k"
METHOD_OPTIONS: dict[str, dict[str, Any]] = {
    "infonce": {},
    "srem": {"complementary_weight": 0.3},
    "srem-plus": {"complementary_weight": 0.0, "decay": 0.85},
}


def recipe(method: str, *, rate: float, args: argparse.Namespace) -> Recipe:
    """The small ViT on Flickr8k's photographs."""
    warmup = args.warmup_epochs if METHODS[method].has_warmup else 0
    table = {
        "name": f"flickr8k-pixels-{method}",
        "data": {
            "source": SOURCE,
            "options": {"features": "pooled"},
            "pixel_cache": args.cache,
            **({} if args.workers is None else {"image_workers": args.workers}),
        },
        "noise": {"rate": rate},
        "model": {"name": "vit", "image_size": args.image_size, "patch_size": args.patch_size},
        "method": {"name": method, **METHOD_OPTIONS[method]},
        "training": {
            "epochs": args.epochs - warmup,
            "warmup_epochs": warmup,
            "decay_after": max(1, round(0.75 * args.epochs) - warmup),
            "batch_size": args.batch_size,
            "learning_rate": args.learning_rate,
            "min_crop_area": 0.5,
            "precision": args.precision,
            "workers": 4,
        },
    }
    return recipe_from_table(table)


def measure_decoding(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Images per second of one pass, by workers; then of passes over the cache that it filled."""
    pairs = read_pairs(Path(resolve_source(SOURCE)), split="train")
    assert pairs.images is not None
    images = SelectedImages(pairs.images, np.arange(min(args.images, len(pairs.images))))
    transform = ImageTransform(args.image_size, args.image_size, shortest_edge=args.image_size)
    rows = []
    for workers in args.worker_counts:
        decoder = Decoder(images, transform, workers=workers)
        started = time.perf_counter()
        for _ in decoder.stream():
            pass
        seconds = time.perf_counter() - started
        decoder.close()
        rows.append({"what": "decoding", "workers": workers, "images_per_second": len(images) / seconds})
    with tempfile.TemporaryDirectory() as folder:
        cached = PixelReading(cache=folder).open(images, transform)
        order = np.random.default_rng(0).permutation(len(images))
        parts = np.array_split(order, max(1, len(order) // 128))
        for _ in range(2):  # the second pass finds the pages in memory
            started = time.perf_counter()
            for part in parts:
                cached.rows(part)
            seconds = time.perf_counter() - started
        rows.append({"what": "cache, normalised", "workers": 0, "images_per_second": len(images) / seconds})
    return [{**row, "image_size": args.image_size, "cores": usable_cores()} for row in rows]


def measure_steps(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Pairs per second of one epoch, and the share of its time in which the step waited for a batch."""
    rows = []
    for cache in ("auto", "off"):
        args.cache = cache
        prepared = prepare(recipe("srem", rate=0.4, args=args))
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
        rows.append({"what": f"training, cache {cache}", "device": str(device), "cores": usable_cores(),
                     "batch_size": args.batch_size, "pairs_per_second": pairs / seconds,
                     "waiting_share": waited / seconds})  # fmt: skip
    return rows


def measure_recall(args: argparse.Namespace) -> list[dict[str, Any]]:
    """R_sum on the test split."""
    rows = []
    for rate in args.rates:
        for method in args.methods:
            with tempfile.TemporaryDirectory() as name:
                prepared = prepare(recipe(method, rate=rate, args=args))
                folder = RunFolder.create(Path(name) / "run", config=recipe_to_toml(prepared.recipe))
                record = train(prepared, folder)
                metrics = evaluate_runs([folder.path], split="test")["metrics"]
            rows.append({"method": method, "noise": rate, "rsum": metrics["rsum"], "seconds": record["seconds"],
                         "device": str(prepared.process.device), "epochs": args.epochs})  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("pixels", __doc__)
    parser.add_argument("what", choices=["decode", "step", "recall"])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--patch-size", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--warmup-epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warm-steps", type=int, default=5)
    parser.add_argument("--cache", default="auto")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--worker-counts", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHOD_OPTIONS))
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0, 0.4])
    args = parser.parse_args(arguments)
    measure = {"decode": measure_decoding, "step": measure_steps, "recall": measure_recall}[args.what]
    rows = measure(args)
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
