"""How fast a backbone trains and scores: by a loop, plain, compiled and by kernels, beside what the device could do.

`srem bench speed saf sgr scan-t2i --device cuda --batch-size 128 --check` prints a row as soon
as it is measured. A step is encoding, comparison, a contrastive loss and the backbone's own, gradients, clipping
and Adam, on random features of the published sizes and captions of 8 to 25 words that lie on the device already. The
floor is what the counted operations and bytes would take at the rates of a large product and of a large copy, both
measured in the same run. The yardstick is a loop over captions, as the field's public codes have it, which is
measured first and briefly; each other row says how many times faster it is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from sremkit import kernels
from sremkit.bench.caption_loops import LOOPS
from sremkit.bench.counted import counted_work
from sremkit.bench.kernel_check import can_check, check_backbones, check_kernels
from sremkit.bench.operations import BY_HAND, Sizes, Work, scoring_work, training_work
from sremkit.bench.own_process import in_own_process
from sremkit.bench.stepping import FUSED, Bench
from sremkit.data.batch import Batch
from sremkit.models import BACKBONES, Encoded

WAYS = ("loop", "recorded", "fused", "plain", "compiled")
#: Seconds that a row is expected to take at most, its compilation included; without them it is skipped.
EXPECTED = {"loop": 20.0, "recorded": 20.0, "fused": 20.0, "plain": 10.0, "compiled": 100.0}


def measure_ceilings(bench: Bench) -> dict[str, float]:
    """Operations a second of a large product and bytes a second of a large copy, read and written."""
    cuda = bench.device.type == "cuda"
    side, numbers = (8192, 1 << 28) if cuda else (512, 1 << 22)
    dtype = torch.bfloat16 if bench.args.precision == "bf16" else torch.float32
    x, y = (torch.randn(side, side, device=bench.device).to(dtype) for _ in range(2))
    out = torch.empty_like(x)
    product = bench.seconds(lambda: torch.mm(x, y, out=out))
    source = torch.randn(numbers, device=bench.device)
    target = torch.empty_like(source)
    copy = bench.seconds(lambda: target.copy_(source))
    return {"operations_a_second": 2 * side**3 / product, "bytes_a_second": 2 * 4 * numbers / copy}


def training_row(bench: Bench, name: str, way: str, ceilings: dict[str, float]) -> dict[str, Any]:
    """One training step of a backbone, in one of the ways."""
    matcher = bench.build(name).train()
    batch = bench.batch(name, bench.args.batch_size)
    step_on = bench.step_of(matcher, way)

    def step() -> None:
        step_on(batch)

    bench.forget_peak()
    seconds = bench.few_seconds(step) if way == "loop" else bench.seconds(step)
    if bench.args.profile and way != "loop":
        print(_profile(bench, step), flush=True)
    row: dict[str, Any] = {"backbone": name, "way": way, "what": "training step", "seconds": seconds}
    row["pairs_a_second"] = bench.args.batch_size / seconds
    row |= bench.peak()
    return row | _beside_floor(seconds, _work(bench, name, batch), ceilings)


def training_row_apart(bench: Bench, name: str, way: str, ceilings: dict[str, float]) -> dict[str, Any]:
    """The same in a process of its own: one that fails to record can draw no more random numbers."""
    args = argparse.Namespace(**{**vars(bench.args), "budget_seconds": bench.remaining()})
    return in_own_process(_training_row_of, args, name, way, ceilings)


def _training_row_of(
    args: argparse.Namespace, name: str, way: str, ceilings: dict[str, float]
) -> dict[str, Any]:
    return training_row(Bench(args), name, way, ceilings)


def _beside_loop(bench: Bench, row: dict[str, Any]) -> dict[str, Any]:
    """How many times as fast as the yardstick, if that was measured."""
    loop = next(
        (r for r in bench.result["rows"] if (r["backbone"], r["way"]) == (row["backbone"], "loop")), None
    )
    if loop is None or row["what"] != loop["what"]:
        return row
    return row | {"times_the_loop": loop["seconds"] / row["seconds"]}


def _beside_floor(seconds: float, work: Work, ceilings: dict[str, float]) -> dict[str, float]:
    """What there was to do, how long the device would need at its best, and how many times as long it took."""
    floor = work.floor(**ceilings)
    return {"operations": work.operations, "bytes": work.bytes, "floor": floor, "ratio": seconds / floor}


def _profile(bench: Bench, step: Callable[[], None]) -> str:
    """Where the time of three steps went, kernel by kernel."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if bench.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(3):
            step()
        bench.wait()
    by = "self_cuda_time_total" if bench.device.type == "cuda" else "self_cpu_time_total"
    return found.key_averages().table(sort_by=by, row_limit=25, max_name_column_width=50)


def _work(bench: Bench, name: str, batch: Batch) -> Work:
    """What a step has to do, counted by hand or else by PyTorch."""
    matcher = bench.build(name).train()
    if name in BY_HAND:
        return training_work(matcher, _sizes(bench, [batch]))
    with bench.autocast():
        return counted_work(matcher, batch)


def _sizes(bench: Bench, batches: list[Batch], *, images: int | None = None) -> Sizes:
    """Of these batches' texts with the images of the first, or with so many."""
    first = batches[0]
    assert first.images is not None
    r, image_dim = first.images.shape[1:3]
    lengths = [
        length for b in batches if b.word_mask is not None for length in b.word_mask.sum(dim=1).tolist()
    ]
    itemsize = 2 if bench.args.precision == "bf16" else 4
    return Sizes(images or len(first.images), r, image_dim, lengths, itemsize)


def scoring_row(bench: Bench, name: str, way: str, ceilings: dict[str, float]) -> dict[str, Any]:
    """All images with all texts, encoders included, each item encoded once."""
    matcher = bench.build(name).eval()
    num_images, num_texts = bench.args.eval_images, bench.args.eval_texts
    batches = [bench.batch(name, min(500, num_texts), seed=k) for k in range(-(-num_texts // 500))]

    @torch.no_grad()
    def score() -> None:
        with bench.autocast():
            of_images = batches[: -(-num_images // len(batches[0].pair_id))]
            images = Encoded.concatenate([matcher.encode_images(b) for b in of_images])
            texts = Encoded.concatenate([matcher.encode_texts(b) for b in batches])
            matcher.score_all(images[:num_images], texts[:num_texts])

    bench.forget_peak()
    with kernels.use("triton" if way == "fused" else "plain"):
        score()
        bench.wait()
        started = time.perf_counter()
        score()
        bench.wait()
    seconds = time.perf_counter() - started
    row = {"backbone": name, "way": way, "what": f"scores {num_images}x{num_texts}", "seconds": seconds}
    row["pairs_a_second"] = num_images * num_texts / seconds
    row |= bench.peak()
    if name in BY_HAND:
        sizes = _sizes(bench, batches, images=num_images)
        work = scoring_work(matcher, sizes._replace(lengths=sizes.lengths[:num_texts]))
        row |= _beside_floor(seconds, work, ceilings)
    return row


def _jobs(
    bench: Bench, ceilings: dict[str, float]
) -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """The yardstick first, then what matters most; what compiles for long comes last."""
    for way in sorted(bench.args.ways, key=lambda way: way != "loop"):
        for name in bench.args.backbones:
            if (way == "fused" and name not in FUSED) or (way == "loop" and name not in LOOPS):
                continue  # no kernel serves it, or nobody loops
            if way == "recorded" and not (bench.device.type == "cuda" and BACKBONES[name].recordable):
                continue  # only CUDA devices replay, and only what never waits for them
            measure = training_row_apart if way == "recorded" else training_row
            yield name, way, lambda n=name, w=way, m=measure: m(bench, n, w, ceilings)  # type: ignore[misc]
            if way in ("fused", "plain") and bench.args.eval_texts:
                yield name, way, lambda n=name, w=way: scoring_row(bench, n, w, ceilings)  # type: ignore[misc]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure everything that fits the budget; what fails is named and kept in `failed`."""
    bench = Bench(args)
    bench.result["failed"] = []
    print(bench.describe())
    if args.check:
        if can_check(args.device):
            bench.result["kernels_right"] = check_kernels(args.device) & check_backbones(args.device)
        else:
            print("the kernels are not checked: they need a CUDA device, or TRITON_INTERPRET=1")
    ceilings = measure_ceilings(bench)
    bench.result["ceilings"] = ceilings
    print(
        f"ceilings: {ceilings['operations_a_second'] / 1e12:.3g} TFLOP/s in a product, "
        f"{ceilings['bytes_a_second'] / 1e12:.3g} TB/s in a copy, read and written\n"
    )
    print(
        "backbone   way       what                  time     pairs/s   peak GB   Tflop      GB  floor ms  ratio  × loop"
    )
    for name, way, job in _jobs(bench, ceilings):
        if bench.remaining() < EXPECTED[way]:
            print(f"{name:<10} {way:<9} skipped: {max(0.0, bench.remaining()):.0f} s of the budget are left")
            continue
        try:
            row = _beside_loop(bench, job())
            bench.keep(row, _line(row))
        except Exception as error:  # one way that fails must not cost the others
            print(f"{name:<10} {way:<9} FAILED: {type(error).__name__}: {str(error)[:800]}", flush=True)
            bench.result["failed"].append({"backbone": name, "way": way, "error": type(error).__name__})
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
    return bench.result


def _line(row: dict[str, Any]) -> str:
    line = f"{row['backbone']:<10} {row['way']:<9} {row['what']:<17} {1e3 * row['seconds']:>6.2f} ms "
    line += f"{row['pairs_a_second']:>11,.0f} {row.get('peak_gb', float('nan')):>9.2f}"
    if "floor" in row:
        line += f" {row['operations'] / 1e12:>7.3f} {row['bytes'] / 1e9:>7.2f}"
        line += f" {1e3 * row['floor']:>9.3f} {row['ratio']:>6.1f}"
    elif "times_the_loop" in row:
        line += " " * 33
    return line + (f" {row['times_the_loop']:>7.1f}" if "times_the_loop" in row else "")
