"""Whether reading batches keeps up with the device: step rate with loading against that of batches on the device.

    python -m benchmarks.loader saf sgr --format float16

Writes random region features of the published size to a temporary folder, memory-maps them as training does, and runs
the same steps on the same batches in each of the modes. A last row reads batches ahead without any step.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from benchmarks.commands import make_parser, run_command
from benchmarks.steps import IMAGE_DIM, REGIONS, SMALL, VOCAB, StepBenchmark, add_step_arguments
from sremkit.data.batch import Batch
from sremkit.data.batches import Batches
from sremkit.data.features import MappedFeatures
from sremkit.data.pairs import Pairs
from sremkit.data.prefetch import prefetch

CAPTIONS = 5  # of each image
MODES = {
    "on-device": "the batches are on the device",
    "prefetch": "threads read and copy them ahead (`sremkit.data.prefetch`)",
    "processes": "worker processes of a DataLoader read ahead, with pinned memory",
    "synchronous": "read between steps",
}
MIN_RATIO = 0.9  # of the step rate with batches on the device: the target


class BatchDataset(Dataset[Batch]):
    """Batches by the numbers of their pairs, for worker processes."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __getitem__(self, rows: np.ndarray) -> Batch:
        return self.batches.take(rows)


class IntegerVocabulary:
    """A vocabulary for texts that consist of word numbers."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]


def make_pairs(folder: Path, num_images: int, *, dtype: str, small: bool) -> Pairs:
    """Random regions in a file, and random captions of 8 to 25 words."""
    rng = np.random.default_rng(0)
    shape = (6, int(SMALL["image_dim"])) if small else (REGIONS, IMAGE_DIM)
    some = rng.standard_normal((min(num_images, 64), *shape), dtype=np.float32).astype(dtype)
    header = {"descr": some.dtype.str, "fortran_order": False, "shape": (num_images, *shape)}
    with (folder / "regions.npy").open("wb") as file:  # as np.save writes; a memory map has larger pages
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, num_images, len(some)):  # values do not matter, so they repeat
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


def loaded(bench: StepBenchmark, pairs: Pairs, mode: str) -> Callable[[], Iterable[Batch]]:
    """A function that returns the same first batches of an epoch on each call, read in one of the modes."""
    args = bench.args
    batches = Batches(pairs, batch_size=args.batch_size, vocabulary=IntegerVocabulary())
    order = batches.own_order(0)
    workers = DataLoader(
        BatchDataset(batches),
        sampler=order,
        batch_size=None,
        num_workers=args.threads,
        pin_memory=bench.device.type == "cuda",
    )

    def in_turn() -> Iterator[Batch]:
        source = workers if mode == "processes" else batches.epoch(0)
        return (batch.to(bench.device, non_blocking=True) for batch in source)

    if mode == "on-device":
        kept = list(islice(in_turn(), args.steps))
        return lambda: kept
    if mode == "prefetch":
        return lambda: islice(prefetch(batches, order, bench.device, threads=args.threads), args.steps)
    return lambda: islice(in_turn(), args.steps)


def seconds_a_batch(bench: StepBenchmark, batches: Iterable[Batch], step: Callable[[Batch], None] | None) -> float:
    """Mean seconds per batch from the request of the first batch to the end of the last step."""
    bench.synchronize()
    started = time.perf_counter()
    count = 0
    for batch in batches:
        if step is not None:
            step(batch)
        count += 1
    bench.synchronize()
    return (time.perf_counter() - started) / count


def measure(bench: StepBenchmark, name: str, pairs: Pairs) -> Iterator[dict[str, Any]]:
    """A row for each mode, on-device first; modes alternate for `rounds` rounds, and the best of each counts."""
    matcher = bench.build(name).train()
    supported = [mode for mode in ("compiled-graph", "triton") if bench.supports(name, mode)]
    on_cuda = bench.device.type == "cuda"
    step = bench.step(matcher, supported[0] if on_cuda and supported else "eager")
    sources = {mode: loaded(bench, pairs, mode) for mode in bench.args.modes if mode != "on-device"}
    sources = {"on-device": loaded(bench, pairs, "on-device"), **sources}
    for batch in islice(sources["on-device"](), 5):  # compiles and captures
        step(batch)
    times: dict[str, list[float]] = {mode: [] for mode in sources}
    for _ in range(bench.args.rounds):
        for mode, source in sources.items():
            times[mode].append(seconds_a_batch(bench, source(), step))
    fastest = min(times["on-device"])
    for mode, found in times.items():
        row = _row(bench, name, mode, min(found))
        yield {**row, "ratio": fastest / row["seconds"]}
    if "prefetch" in sources:
        seconds = min(seconds_a_batch(bench, sources["prefetch"](), None) for _ in range(bench.args.rounds))
        yield _row(bench, name, "prefetch, no step", seconds)


def _row(bench: StepBenchmark, name: str, mode: str, seconds: float) -> dict[str, Any]:
    return {
        "backbone": name,
        "mode": mode,
        "format": bench.args.format,
        "threads": bench.args.threads,
        "seconds": seconds,
        "steps_per_second": 1 / seconds,
        "pairs_per_second": bench.args.batch_size / seconds,
    }


def run(args: argparse.Namespace) -> StepBenchmark:
    """Measure every backbone; the last column is the step rate relative to batches on the device."""
    if args.out:
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    bench = StepBenchmark(args)
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="sremkit-loader-") as folder:
        pairs = make_pairs(Path(folder), args.images, dtype=args.format, small=args.small)
        args.steps = min(args.steps, len(pairs) // args.batch_size)
        print(f"{bench.describe()}, {args.format}, {args.threads} threads, {args.steps} steps")
        print("backbone   mode             ms/step   steps/s     pairs/s  of the rate on the device")
        for name in args.backbones:
            if bench.remaining() <= 0:
                print(f"{name:<10} skipped: the time budget is spent")
                continue
            for row in measure(bench, name, pairs):
                bench.add(row, _line(row))
    return bench


def _line(row: dict[str, Any]) -> str:
    line = f"{row['backbone']:<10} {row['mode']:<16} {1e3 * row['seconds']:>9.2f} {row['steps_per_second']:>9.1f}"
    line += f" {row['pairs_per_second']:>11,.0f}"
    if "ratio" not in row or row["mode"] == "on-device":
        return line
    note = "" if row["ratio"] >= MIN_RATIO else f", less than {MIN_RATIO:.0%}"
    return line + f"  {row['ratio']:.1%}{note}"


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("loader", __doc__)
    add_step_arguments(parser, backbones=["saf", "sgr"], modes=MODES, timed=False)
    parser.add_argument("--format", choices=("float16", "float32"), default="float16", help="dtype on disk")
    parser.add_argument("--threads", type=int, default=4, help="threads, or processes, that read ahead")
    parser.add_argument("--images", type=int, default=4000, help="images in the file: 147 kB each in float16")
    parser.add_argument("--steps", type=int, default=150, help="steps of one measurement")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each mode; the best counts")
    parser.add_argument("--folder", type=Path, help="for the temporary file")
    parser.add_argument("-o", "--out", metavar="FILE", help="write the rows there as CSV, after each one")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(build_parser(), lambda args: run(args).exit_code(), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
