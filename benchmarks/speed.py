"""Training and scoring speed of a backbone: loop, eager, compiled, Triton kernels, CUDA graphs, against the roofline.

    python -m benchmarks.speed saf sgr scan-t2i --device cuda --batch-size 128 --check

Prints each row when it is measured. A step encodes, compares, computes a contrastive loss and the backbone's own
losses, and runs backward, clipping and Adam, on random features of the published sizes and captions of 8 to 25 words
that are on the device already. The roofline is the time for the counted operations and bytes at the rates of a large
matrix product and of a large copy, measured in the same run. The reference is a loop over captions, as in public
code; every other row states its speed-up over it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.commands import make_parser, run_command
from benchmarks.flops import Sizes, Work, scoring_work, training_work
from benchmarks.kernel_check import can_check, check_backbones, check_kernels
from benchmarks.loops import has_loop
from benchmarks.steps import MODES, StepBenchmark, add_step_arguments
from sremkit import ops
from sremkit.bench.grid import run_in_subprocess
from sremkit.models import Encoded

#: Seconds that a row takes at most, its compilation included; with less left of the budget it is skipped.
EXPECTED = {"loop": 20.0, "compiled-graph": 20.0, "triton": 20.0, "eager": 10.0, "compiled": 100.0}


def measure_peaks(bench: StepBenchmark) -> dict[str, float]:
    """Operations per second of a large matrix product and bytes per second of a large copy, read and written."""
    cuda = bench.device.type == "cuda"
    side, numbers = (8192, 1 << 28) if cuda else (512, 1 << 22)
    dtype = torch.bfloat16 if bench.args.precision == "bf16" else torch.float32
    x, y = (torch.randn(side, side, device=bench.device).to(dtype) for _ in range(2))
    out = torch.empty_like(x)
    product = bench.seconds(lambda: torch.mm(x, y, out=out))
    source = torch.randn(numbers, device=bench.device)
    target = torch.empty_like(source)
    copy = bench.seconds(lambda: target.copy_(source))
    return {"flops_per_second": 2 * side**3 / product, "bytes_per_second": 2 * 4 * numbers / copy}


def training_row(bench: StepBenchmark, name: str, mode: str, peaks: dict[str, float]) -> dict[str, Any]:
    """One training step of a backbone in one of the modes."""
    matcher = bench.build(name).train()
    batch = bench.batch(name, bench.args.batch_size)
    step_on = bench.step(matcher, mode)

    def step() -> None:
        step_on(batch)

    bench.reset_peak()
    seconds = bench.seconds(step, warmup=1 if mode == "loop" else 3)
    if bench.args.profile and mode != "loop":
        print(_profile(bench, step), flush=True)
    row: dict[str, Any] = {"backbone": name, "mode": mode, "task": "training step", "seconds": seconds}
    row["pairs_per_second"] = bench.args.batch_size / seconds
    row |= bench.peak()
    with bench.autocast():
        work = training_work(bench.build(name).train(), batch, itemsize=_itemsize(bench))
    return row | _roofline(seconds, work, peaks)


def training_row_in_subprocess(bench: StepBenchmark, name: str, mode: str, peaks: dict[str, float]) -> dict[str, Any]:
    """The same in a subprocess: after a failed capture of a CUDA graph a process cannot draw random numbers."""
    args = argparse.Namespace(**{**vars(bench.args), "budget_seconds": bench.remaining()})
    return run_in_subprocess(_training_row, args, name, mode, peaks)


def _training_row(args: argparse.Namespace, name: str, mode: str, peaks: dict[str, float]) -> dict[str, Any]:
    return training_row(StepBenchmark(args), name, mode, peaks)


def _add_speedup(bench: StepBenchmark, row: dict[str, Any]) -> dict[str, Any]:
    """Add the speed-up over the loop, if that was measured."""
    for loop in bench.result["rows"]:
        if (loop["backbone"], loop["mode"], loop["task"]) == (row["backbone"], "loop", row["task"]):
            return row | {"speedup": loop["seconds"] / row["seconds"]}
    return row


def _roofline(seconds: float, work: Work, peaks: dict[str, float]) -> dict[str, float]:
    """Operations, bytes, minimum seconds on this device, and the ratio of the measured seconds to it."""
    least = work.roofline(**peaks)
    return {"flops": work.flops, "bytes": work.bytes, "roofline": least, "ratio": seconds / least}


def _itemsize(bench: StepBenchmark) -> int:
    return 2 if bench.args.precision == "bf16" else 4


def _profile(bench: StepBenchmark, step: Callable[[], None]) -> str:
    """The profiler's table of three steps."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if bench.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            step()
        bench.synchronize()
    by = "self_cuda_time_total" if bench.device.type == "cuda" else "self_cpu_time_total"
    return profile.key_averages().table(sort_by=by, row_limit=25, max_name_column_width=50)


def scoring_row(bench: StepBenchmark, name: str, mode: str, peaks: dict[str, float]) -> dict[str, Any]:
    """All images with all texts, encoders included; each item is encoded once."""
    matcher = bench.build(name).eval()
    num_images, num_texts = bench.args.eval_images, bench.args.eval_texts
    batches = [bench.batch(name, min(500, num_texts), seed=k) for k in range(-(-num_texts // 500))]
    of_images = batches[: -(-num_images // len(batches[0].pair_id))]

    @torch.no_grad()
    def score() -> None:
        with bench.autocast(), ops.use("triton" if mode == "triton" else "plain"):
            images = Encoded.concatenate([matcher.encode_images(b) for b in of_images])
            texts = Encoded.concatenate([matcher.encode_texts(b) for b in batches])
            matcher.score_all(images[:num_images], texts[:num_texts])

    bench.reset_peak()
    seconds = bench.seconds(score, warmup=1)
    row = {"backbone": name, "mode": mode, "task": f"scores {num_images}x{num_texts}", "seconds": seconds}
    row["pairs_per_second"] = num_images * num_texts / seconds
    row |= bench.peak()
    sizes = Sizes.of(batches, itemsize=_itemsize(bench), images=num_images)
    work = scoring_work(matcher, sizes._replace(lengths=sizes.lengths[:num_texts]))
    return row if work is None else row | _roofline(seconds, work, peaks)


Measurement = Callable[[StepBenchmark, str, str, dict[str, float]], dict[str, Any]]


def _measurements(bench: StepBenchmark) -> Iterator[tuple[str, str, Measurement]]:
    """The loop first, as the others are compared with it."""
    for mode in sorted(bench.args.modes, key=lambda mode: mode != "loop"):
        for name in bench.args.backbones:
            if (mode == "loop" and not has_loop(name)) or not bench.supports(name, mode):
                continue
            yield name, mode, training_row_in_subprocess if mode.endswith("-graph") else training_row
            if mode in ("triton", "eager") and bench.args.eval_texts:
                yield name, mode, scoring_row


def run(args: argparse.Namespace) -> StepBenchmark:
    """Measure everything that fits the budget."""
    bench = StepBenchmark(args)
    print(bench.describe())
    if args.check:
        if can_check(args.device):
            bench.result["kernels_right"] = check_kernels(args.device) & check_backbones(args.device)
        else:
            print("the kernels are not checked: they need a CUDA device, or TRITON_INTERPRET=1")
    peaks = measure_peaks(bench)
    bench.result["peaks"] = peaks
    print(
        f"peaks: {peaks['flops_per_second'] / 1e12:.3g} TFLOP/s in a matrix product, "
        f"{peaks['bytes_per_second'] / 1e12:.3g} TB/s in a copy, read and written\n"
    )
    columns = "time     pairs/s   peak GB   Tflop      GB  roofline ms  ratio  × loop"
    print(f"{'backbone':<10} {'mode':<14} {'task':<17} {columns:>50}")
    for name, mode, measure in _measurements(bench):
        head = f"{name:<10} {mode:<14}"
        if bench.remaining() < EXPECTED[mode]:
            print(f"{head} skipped: {max(0.0, bench.remaining()):.0f} s of the budget are left")
            continue
        try:
            row = _add_speedup(bench, measure(bench, name, mode, peaks))
            bench.add(row, _line(row))
        except Exception as error:  # the other measurements go on
            bench.fail(head, error, backbone=name, mode=mode)
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
    return bench


def _line(row: dict[str, Any]) -> str:
    line = f"{row['backbone']:<10} {row['mode']:<14} {row['task']:<17} {1e3 * row['seconds']:>6.2f} ms "
    line += f"{row['pairs_per_second']:>11,.0f} {row.get('peak_gb', float('nan')):>9.2f}"
    if "roofline" in row:
        line += f" {row['flops'] / 1e12:>7.3f} {row['bytes'] / 1e9:>7.2f}"
        line += f" {1e3 * row['roofline']:>12.3f} {row['ratio']:>6.1f}"
    elif "speedup" in row:
        line += " " * 36
    return line + (f" {row['speedup']:>7.1f}" if "speedup" in row else "")


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("speed", __doc__)
    modes = {mode: MODES[mode] for mode in EXPECTED}
    add_step_arguments(parser, backbones=["saf", "sgr", "scan-t2i"], modes=modes)
    parser.add_argument("--eval-images", type=int, default=1000)
    parser.add_argument("--eval-texts", type=int, default=5000, help="0 leaves scoring out")
    parser.add_argument("--check", action="store_true", help="first compare the kernels with plain PyTorch")
    parser.add_argument("--profile", action="store_true", help="print a profile of each training step")
    parser.add_argument("-o", "--out", metavar="FILE", help="write the rows there as CSV, after each one")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(build_parser(), lambda args: run(args).exit_code(), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
