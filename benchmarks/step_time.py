"""Time and memory of a training step of each backbone, against two loops that compute the same.

    python -m benchmarks.step_time saf sgr --batch-size 64

A step encodes, compares, computes a contrastive loss and runs backward, at the published sizes, on random features and
captions of 8 to 20 words (`--max-words`). Each measurement runs in a subprocess, so that its peak memory is its own.

The caption loop compares one caption with all images at a time, as public code does. The pair loop is the formula as
written, one caption with one image at a time; it runs once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.commands import make_parser, run_command
from benchmarks.loops import caption_loop, has_loop, pair_loop
from benchmarks.steps import PUBLISHED, contrastive_backward, make_batch, model_options
from sremkit.bench.grid import run_in_subprocess
from sremkit.experiment import peak_memory_mb
from sremkit.models import BACKBONES, Encoded, Matcher, build_matcher

COMPARE = {"caption loop": caption_loop, "pair loop": pair_loop}


def measure(
    name: str, *, by: str, batch_size: int, device: str, min_run_time: float, max_words: int = 20
) -> dict[str, float]:
    """Best seconds of a training step and of its comparison alone, each forward and backward; peak memory of the steps.

    Args:
        by: "ours", or one of `COMPARE`.
        min_run_time: seconds to repeat a measurement; a pair loop runs once.
        max_words: of a caption; the minimum is 8.
    """
    torch.manual_seed(0)
    matcher = build_matcher(name, **model_options(name, PUBLISHED)).to(device).train()
    batch = make_batch(name, batch_size, words=(8, max_words)).to(device)
    before = peak_memory_mb(torch.device(device))

    def compare(images: Encoded, texts: Encoded) -> torch.Tensor:
        return matcher.compare(images, texts) if by == "ours" else COMPARE[by](matcher, images, texts)

    def step() -> None:
        images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
        extra = sum(matcher.extra_losses(batch, images).values())
        contrastive_backward(compare(images, texts), extra)

    repeats = (1, 1) if by == "pair loop" else (2, 20)
    limits: dict[str, Any] = {"device": device, "min_run_time": min_run_time, "repeats": repeats}
    seconds = _best_seconds(step, matcher, **limits)
    peak = peak_memory_mb(torch.device(device)) - before
    with torch.no_grad():
        images, texts = (_leaf(encoded) for encoded in matcher.encode(batch))
    compared = _best_seconds(lambda: contrastive_backward(compare(images, texts)), matcher, **limits)
    return {"step": seconds, "comparison": compared, "megabytes": peak}


def _leaf(encoded: Encoded) -> Encoded:
    """The same encodings as leaves of the autograd graph."""
    local, pooled = (None if t is None else t.requires_grad_() for t in (encoded.local, encoded.pooled))
    return Encoded(local, encoded.mask, pooled)


def _best_seconds(
    work: Callable[[], None], matcher: Matcher, *, device: str, min_run_time: float, repeats: tuple[int, int]
) -> float:
    """Best of at least `repeats[0]` calls, and of at most `repeats[1]` within the time."""
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < repeats[0] or (len(times) < repeats[1] and time.perf_counter() - started < min_run_time):
        matcher.zero_grad(set_to_none=True)
        work_started = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - work_started)
    return min(times)


def run(args: argparse.Namespace) -> None:
    print(
        f"batch {args.batch_size}, {args.device}, {torch.get_num_threads()} threads, forward + backward\n"
        "backbone  computed by   whole training step  comparison alone  peak memory"
    )
    # CLIP is left out unless it is named: it compares as `dual` does, its time is that of the transformers.
    for name in args.backbones or [name for name in BACKBONES if BACKBONES[name].image_input != "pixels"]:
        loops = [] if not has_loop(name) else ["caption loop"] + ["pair loop"] * (not args.no_pair_loop)
        ours: dict[str, float] = {}
        for by in ["ours", *loops]:
            found = measure_in_subprocess(name, by=by, args=args)
            ours = ours or found
            print(_line(name, by, found, ours), flush=True)


def measure_in_subprocess(name: str, *, by: str, args: argparse.Namespace) -> dict[str, float]:
    options = {key: getattr(args, key) for key in ("batch_size", "device", "min_run_time", "max_words")}
    return run_in_subprocess(measure, name, by=by, **options)


def _line(name: str, by: str, found: dict[str, float], ours: dict[str, float]) -> str:
    """Seconds, and for a loop the ratio to ours."""
    line = f"{name:<10}{by:<13}"
    for part, width in (("step", 12), ("comparison", 9)):
        ratio = "" if by == "ours" else f"{found[part] / ours[part]:.1f}x"
        line += f"{found[part]:>{width}.3f}s {ratio:>7}"
    return line + f" {found['megabytes']:>9.0f}MB"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("step_time", __doc__)
    parser.add_argument("backbones", nargs="*", help="names (default: all that read features)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--min-run-time", type=float, default=20.0, help="seconds to repeat one measurement")
    parser.add_argument("--max-words", type=int, default=20, help="words of a caption; the minimum is 8")
    parser.add_argument("--no-pair-loop", action="store_true", help="omit the pair loop, which takes minutes")
    return run_command(parser, run, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
