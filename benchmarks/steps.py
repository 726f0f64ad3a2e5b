"""Parts of the training-step benchmarks: models of the published sizes, random batches, a step, timing, rows.

A step encodes, compares, computes a contrastive loss and the backbone's own losses, and runs backward, clipping and
Adam.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.benchmark import Timer

from benchmarks.loops import caption_loop
from sremkit import ops
from sremkit.bench.efficiency import describe_device
from sremkit.bench.grid import write_csv
from sremkit.data.batch import Batch
from sremkit.models import BACKBONES, Matcher, build_matcher
from sremkit.models.regional_compile import compile_around_kernels
from sremkit.training.cuda_graphs import GraphedSteps

VOCAB, IMAGE_DIM, REGIONS, SENTENCE_DIM = 8481, 2048, 36, 384
#: Sizes of the data that models are built for; sizes of the models are their defaults, which are the published ones.
PUBLISHED = {"vocab_size": VOCAB, "image_dim": IMAGE_DIM, "text_dim": SENTENCE_DIM, "num_regions": REGIONS}
#: Sizes to try a benchmark with.
SMALL = {
    "vocab_size": VOCAB,
    "image_dim": 24,
    "text_dim": SENTENCE_DIM,
    "embed_size": 16,
    "word_dim": 8,
    "sim_dim": 8,
    "num_regions": 6,
}
#: Options that are no sizes. IMRAM in both directions takes minutes on a CPU; CLIP is ViT-B/32.
OPTIONS: dict[str, dict[str, Any]] = {
    "imram": {"direction": "text"},
    "clip": {"config": {"text_config": {"vocab_size": VOCAB}}},
}
#: How a step is computed.
MODES = {
    "loop": "a loop over captions in float32, as public code computes",
    "eager": "PyTorch's operations",
    "compiled": "PyTorch's operations, compiled by torch.compile",
    "triton": "through the Triton kernels",
    "triton-graph": "through the Triton kernels, replayed as one CUDA graph",
    "compiled-graph": "as triton-graph, with the operations around the kernels compiled",
}
BACKENDS = {
    "triton": "triton",
    "triton-graph": "auto",
    "compiled-graph": "auto",
}  # of `ops`; the others: "plain"


def model_options(name: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Those of the sizes that the backbone takes, and its other options."""
    known = inspect.signature(BACKBONES[name]).parameters
    return {**{key: value for key, value in sizes.items() if key in known}, **OPTIONS.get(name, {})}


def has_kernels(name: str) -> bool:
    """Whether the backbone's comparison has Triton kernels."""
    return BACKBONES[name].kernels_support is not Matcher.kernels_support


def make_batch(
    name: str,
    batch_size: int,
    *,
    seed: int = 0,
    words: tuple[int, int] = (8, 20),
    regions: int = REGIONS,
    image_dim: int = IMAGE_DIM,
) -> Batch:
    """A random batch for a backbone.

    Args:
        words: minimum and maximum number of words of a caption.
    """
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(words[0], words[1] + 1, (batch_size,), generator=g)
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    numbers = torch.randint(4, VOCAB, mask.shape, generator=g).masked_fill(~mask, 0)
    pixels = BACKBONES[name].image_input == "pixels"
    shape = (batch_size, 3, 224, 224) if pixels else (batch_size, regions, image_dim)
    return Batch(
        pair_id=torch.arange(batch_size),
        image_id=torch.arange(batch_size),
        images=torch.randn(shape, generator=g),
        region_mask=None if pixels else torch.ones(batch_size, regions, dtype=torch.bool),
        words=numbers,
        word_mask=mask,
        max_total_words=int(mask.sum()),
        sentences=torch.randn(batch_size, SENTENCE_DIM, generator=g),
    )


def contrastive_backward(logits: Tensor, extra: Tensor | float = 0.0) -> None:
    """Backward through a symmetric cross-entropy and extra losses."""
    match = torch.arange(len(logits), device=logits.device)
    (F.cross_entropy(logits, match) + F.cross_entropy(logits.T, match) + extra).backward()


def median_seconds(work: Callable[[], object], *, min_run_time: float, warmup: int = 3) -> float:
    """Median seconds of a call, repeated for at least `min_run_time` seconds, after `warmup` calls."""
    for _ in range(warmup):
        work()
    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=max(min_run_time, 1e-6)).median


class StepBenchmark:
    """One run of a benchmark: its arguments, its time budget, and its rows so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        if args.device is None:
            args.device = "cuda" if torch.cuda.is_available() else "cpu"
        if args.precision is None:
            args.precision = "bf16" if args.device.startswith("cuda") else "float32"
        self.args = args
        self.device = torch.device(args.device)
        self.started = time.monotonic()
        self.result: dict[str, Any] = {
            "machine": describe_device(self.device),
            "torch": torch.__version__,
            "precision": args.precision,
            "batch_size": args.batch_size,
            "rows": [],
            "failed": [],
        }

    def remaining(self) -> float:
        """Seconds left of the budget."""
        return self.args.budget_seconds - (time.monotonic() - self.started)

    def describe(self) -> str:
        facts = (self.result["machine"], f"torch {torch.__version__}", self.args.precision)
        return f"{', '.join(facts)}, batch {self.args.batch_size}"

    def autocast(self, *, enabled: bool = True) -> torch.autocast:
        half = enabled and self.args.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half)

    def add(self, row: dict[str, Any], line: str) -> None:
        """Print a row, and write all rows so far, so that an interrupted run loses nothing."""
        self.result["rows"].append(row)
        print(line, flush=True)
        if self.args.json:
            Path(self.args.json).write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")
        if self.args.out:
            write_csv(self.result["rows"], Path(self.args.out))

    def fail(self, line: str, error: Exception, **labels: str) -> None:
        """Print a measurement that failed; the others go on."""
        print(f"{line} FAILED: {type(error).__name__}: {str(error)[:800]}", flush=True)
        self.result["failed"].append({**labels, "error": type(error).__name__})

    def exit_code(self) -> int:
        """1 if a measurement failed."""
        failed, done = len(self.result["failed"]), len(self.result["rows"])
        if failed:
            print(f"\n{failed} of {failed + done} measurements failed")
        return 1 if failed else 0

    def build(self, name: str, **sizes: int) -> Matcher:
        torch.manual_seed(0)
        known = SMALL if self.args.small else PUBLISHED
        return build_matcher(name, **model_options(name, {**known, **sizes})).to(self.device)

    def batch(self, name: str, size: int, *, seed: int = 0, **sizes: Any) -> Batch:
        small = {"regions": 6, "image_dim": SMALL["image_dim"], "words": (2, 5)}
        known = small if self.args.small else {"words": (8, 25)}
        return make_batch(name, size, seed=seed, **{**known, **sizes}).to(self.device)

    def supports(self, name: str, mode: str) -> bool:
        """Whether a backbone has this mode on this device; loops are known by `has_loop`."""
        if mode.endswith("-graph"):
            return self.device.type == "cuda" and BACKBONES[name].supports_cuda_graphs
        return mode != "triton" or has_kernels(name)

    def step(self, matcher: Matcher, mode: str) -> Callable[[Batch], None]:
        """A training step in one of the `MODES`; "compiled-graph" compiles parts of the matcher for good."""
        graphs, on_cuda = mode.endswith("-graph"), self.device.type == "cuda"
        optimizer = torch.optim.Adam(matcher.parameters(), lr=2e-4, fused=on_cuda, capturable=graphs)
        score: Callable[[Batch], tuple[Tensor, dict[str, Tensor]]] = matcher.logits_and_losses
        if mode == "compiled-graph":
            with ops.use("auto"):
                compile_around_kernels(matcher)
        elif mode == "compiled":
            score = torch.compile(matcher.logits_and_losses)
        elif mode == "loop":

            def score(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
                return caption_loop(matcher, matcher.encode_images(batch), matcher.encode_texts(batch)), {}

        def step(batch: Batch) -> None:
            optimizer.zero_grad(set_to_none=True)
            with ops.use(BACKENDS.get(mode, "plain")):
                with self.autocast(enabled=mode != "loop"):
                    logits, losses = score(batch)
                contrastive_backward(logits, sum(losses.values()))
            torch.nn.utils.clip_grad_norm_(matcher.parameters(), 2.0)
            optimizer.step()

        def kernels_support(batch: Batch) -> bool:
            with self.autocast():
                return matcher.kernels_support(batch)

        return GraphedSteps(step, self.device, can_capture=kernels_support) if graphs else step

    def seconds(self, work: Callable[[], object], *, warmup: int = 3) -> float:
        """Median seconds of a call, within the time budget."""
        limit = min(self.args.min_run_time, max(0.0, self.remaining()))
        return median_seconds(work, min_run_time=limit, warmup=warmup)

    def synchronize(self) -> None:
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def reset_peak(self) -> None:
        """Start counting the peak memory, after freeing what earlier measurements left in reference cycles."""
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> dict[str, float]:
        """The peak memory of a CUDA device, for a row."""
        return {"peak_gb": torch.cuda.max_memory_allocated() / 1e9} if self.device.type == "cuda" else {}


def add_step_arguments(
    parser: argparse.ArgumentParser, *, backbones: list[str], modes: dict[str, str], timed: bool = True
) -> None:
    """Options of a benchmark of training steps.

    Args:
        modes: each with its meaning.
        timed: whether measurements are repeated for a given time.
    """
    parser.add_argument("backbones", nargs="*", default=backbones, help="names of backbones")
    parser.add_argument("--device", help="cuda where there is one, else cpu")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--precision", choices=("bf16", "float32"), help="bf16 on cuda, else float32")
    meanings = "; ".join(f"{mode}: {meaning}" for mode, meaning in modes.items())
    parser.add_argument("--modes", nargs="+", choices=list(modes), default=list(modes), help=meanings)
    parser.add_argument("--budget-seconds", type=float, default=480.0, help="what does not fit is skipped")
    if timed:
        parser.add_argument("--min-run-time", type=float, default=3.0, help="seconds to repeat one measurement")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too, after each one")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the benchmark")
