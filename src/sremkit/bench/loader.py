"""Whether data keep up with the device: steps on batches that lie there already against steps that load them.

`srem bench loader saf sgr --format float16` writes random regions of the published size to a temporary folder,
memory-mapped as a user's would be, and runs the same steps on the same batches in each of the ways:

    resident     the batches lie on the device
    ahead        threads read and send them ahead (`sremkit.data.prefetch`)
    processes    worker processes read ahead, and a thread pins what they hand over
    between      read between steps

and, without any step, as fast as they can be read ahead ("ahead, no step").
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.bench.backbones import IMAGE_DIM, REGIONS, VOCAB
from sremkit.bench.stepping import FUSED, SMALL, Bench
from sremkit.data.batch import Batch
from sremkit.data.batches import Batches
from sremkit.data.features import MappedFeatures
from sremkit.data.pairs import Pairs
from sremkit.data.prefetch import prefetched

CAPTIONS = 5  # of each image
WAYS = ("resident", "ahead", "processes", "between")
ENOUGH = 0.9  # of the resident step rate: the bar that is set


class Numbers:
    """A vocabulary of texts that are numbers already."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]


def make_pairs(folder: Path, num_images: int, *, dtype: str, small: bool) -> Pairs:
    """Random regions in a file, and random captions of 8 to 25 words."""
    rng = np.random.default_rng(0)
    shape = (6, int(SMALL["image_dim"])) if small else (REGIONS, IMAGE_DIM)
    some = rng.standard_normal((min(num_images, 64), *shape), dtype=np.float32).astype(dtype)
    header = {"descr": some.dtype.str, "fortran_order": False, "shape": (num_images, *shape)}
    with (folder / "regions.npy").open(
        "wb"
    ) as file:  # as np.save writes, not through a mapping: pages are larger
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, num_images, len(some)):  # the numbers do not matter, so they are repeated
            file.write(some[: num_images - start].tobytes())
    lengths = rng.integers(8, 26, size=CAPTIONS * num_images)
    texts = [" ".join(map(str, rng.integers(4, VOCAB, size=length))) for length in lengths]
    return Pairs(
        name="random regions",
        split="train",
        pair_ids=[str(k) for k in range(len(texts))],
        texts=texts,
        image_of_text=np.repeat(np.arange(num_images), CAPTIONS),
        image_ids=[str(k) for k in range(num_images)],
        image_features=MappedFeatures(folder / "regions.npy"),
    )


def loaded(bench: Bench, pairs: Pairs, way: str) -> Callable[[], Iterable[Batch]]:
    """Gives the first batches of an epoch, again and again the same, in one of the ways."""
    args = bench.args
    workers = args.threads if way == "processes" else 0
    pinned = bench.device.type == "cuda" and way == "processes"
    batches = Batches(
        pairs, batch_size=args.batch_size, vocabulary=Numbers(), workers=workers, pin_memory=pinned
    )

    def in_turn() -> Iterator[Batch]:
        return (batch.to(bench.device, non_blocking=True) for batch in batches.epoch(0))

    if way == "resident":
        kept = list(islice(in_turn(), args.steps))
        return lambda: kept
    if way == "ahead":
        return lambda: islice(prefetched(batches, 0, bench.device, threads=args.threads), args.steps)
    return lambda: islice(in_turn(), args.steps)


def seconds_a_batch(bench: Bench, batches: Iterable[Batch], step: Callable[[Batch], None] | None) -> float:
    """Mean seconds from the first batch asked for to the last one done."""
    bench.wait()
    started = time.perf_counter()
    count = 0
    for batch in batches:
        if step is not None:
            step(batch)
        count += 1
    bench.wait()
    return (time.perf_counter() - started) / count


def measure(bench: Bench, name: str, pairs: Pairs) -> Iterator[dict[str, Any]]:
    """A row for each way, the resident one first; each is measured in turn, `rounds` times."""
    matcher = bench.build(name).train()
    cuda = bench.device.type == "cuda"
    fastest = "recorded" if type(matcher).recordable else "fused" if name in FUSED else "plain"
    step = bench.step_of(matcher, fastest if cuda else "plain")
    sources = {way: loaded(bench, pairs, way) for way in bench.args.ways if way != "resident"}
    sources = {"resident": loaded(bench, pairs, "resident"), **sources}
    for batch in islice(sources["resident"](), 5):  # compile what is to be compiled
        step(batch)
    times: dict[str, list[float]] = {way: [] for way in sources}
    for _ in range(bench.args.rounds):
        for way, source in sources.items():
            times[way].append(seconds_a_batch(bench, source(), step))
    resident = min(times["resident"])
    for way, found in times.items():
        row = _row(bench, name, way, min(found))
        yield {**row, "ratio": resident / row["seconds"]}
    if "ahead" in sources:
        alone = min(seconds_a_batch(bench, sources["ahead"](), None) for _ in range(bench.args.rounds))
        yield _row(bench, name, "ahead, no step", alone)


def _row(bench: Bench, name: str, way: str, seconds: float) -> dict[str, Any]:
    return {
        "backbone": name,
        "way": way,
        "format": bench.args.format,
        "threads": bench.args.threads,
        "seconds": seconds,
        "steps_a_second": 1 / seconds,
        "pairs_a_second": bench.args.batch_size / seconds,
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure every backbone; says at the end of a row whether the bar is reached."""
    if args.out:
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    bench = Bench(args)
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="sremkit-loader-") as folder:
        pairs = make_pairs(Path(folder), args.images, dtype=args.format, small=args.small)
        args.steps = min(args.steps, len(pairs) // args.batch_size)
        print(f"{bench.describe()}, {args.format}, {args.threads} threads, {args.steps} steps")
        print("backbone   way              ms a step   steps/s     pairs/s  of the resident rate")
        for name in args.backbones:
            if bench.remaining() <= 0:
                print(f"{name:<10} skipped: nothing is left of the budget")
                continue
            for row in measure(bench, name, pairs):
                bench.keep(row, _line(row))
    return bench.result


def _line(row: dict[str, Any]) -> str:
    line = (
        f"{row['backbone']:<10} {row['way']:<16} {1e3 * row['seconds']:>9.2f} {row['steps_a_second']:>9.1f}"
    )
    line += f" {row['pairs_a_second']:>11,.0f}"
    if "ratio" not in row or row["way"] == "resident":
        return line
    short = "" if row["ratio"] >= ENOUGH else f", less than {ENOUGH:.0%}"
    return line + f"  {row['ratio']:.1%}{short}"
