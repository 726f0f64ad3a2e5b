"""What the benches of training steps share: a model, a batch, a step, and a watch that knows its device.

A step is encoding, comparison, a contrastive loss and the backbone's own, gradients, clipping and Adam.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sremkit import kernels
from sremkit.bench.backbones import IMAGE_DIM, OPTIONS, REGIONS, WORDS, gradients_of, make_batch
from sremkit.bench.caption_loops import LOOPS
from sremkit.bench.grid import write_csv
from sremkit.data.batch import Batch
from sremkit.models import Matcher, build_matcher
from sremkit.models.compiling import compile_around_kernels
from sremkit.training.recorded import RecordedSteps

#: Backbones whose comparison goes through kernels.
FUSED = ("saf", "sgr", "sgraf", "scan-t2i", "scan-i2t", "imram")
#: Backbones that reason about similarity vectors.
WITH_NODES = ("saf", "sgr", "sgraf")
#: Sizes to try a program with.
SMALL = {"vocab_size": 8481, "image_dim": 24, "embed_size": 16, "word_dim": 8}


class Bench:
    """One run: its arguments, what is left of its time, and the rows found so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        if args.device is None:
            args.device = "cuda" if torch.cuda.is_available() else "cpu"
        if args.precision is None:
            args.precision = "bf16" if args.device.startswith("cuda") else "float32"
        self.args = args
        self.device = torch.device(args.device)
        self.started = time.monotonic()
        self.result: dict[str, Any] = {"machine": _machine(self.device), "rows": []}
        self.result |= {
            "torch": torch.__version__,
            "precision": args.precision,
            "batch_size": args.batch_size,
        }

    def remaining(self) -> float:
        return self.args.budget_seconds - (time.monotonic() - self.started)

    def describe(self) -> str:
        """The first line of every bench."""
        facts = (self.result["machine"], f"torch {torch.__version__}", self.args.precision)
        return f"{', '.join(facts)}, batch {self.args.batch_size}"

    def autocast(self, *, enabled: bool = True) -> torch.autocast:
        half = enabled and self.args.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half)

    def keep(self, row: dict[str, Any], line: str) -> None:
        """Print a row, and write everything so far: a run that is cut off loses nothing."""
        self.result["rows"].append(row)
        print(line, flush=True)
        if self.args.json:
            Path(self.args.json).write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")
        if self.args.out:
            write_csv(self.result["rows"], Path(self.args.out))

    def build(self, name: str) -> Matcher:
        torch.manual_seed(0)
        options = OPTIONS.get(name, WORDS)
        if self.args.small:
            options = {**options, "image_dim": SMALL["image_dim"]} if name == "dual" else SMALL
            if name in WITH_NODES:
                options = {**SMALL, "sim_dim": 8, "num_regions": 6}
        return build_matcher(name, **options).to(self.device)

    def batch(self, name: str, size: int, *, seed: int = 0) -> Batch:
        regions, image_dim = (6, SMALL["image_dim"]) if self.args.small else (REGIONS, IMAGE_DIM)
        words = (2, 5) if self.args.small else (8, 25)
        return make_batch(name, size, seed=seed, words=words, regions=regions, image_dim=int(image_dim)).to(
            self.device
        )

    def step_of(self, matcher: Matcher, way: str) -> Callable[[Batch], None]:
        """A training step in one of the ways.

        plain: PyTorch's operations;  compiled: these, compiled;  fused: through the kernels;  replayed: fused, and
        replayed as one CUDA graph;  recorded: replayed, and what stands around the kernels is compiled, for this
        matcher from then on;  loop: over captions, the yardstick, as the field's public codes compute, in float32.
        """
        recorded, on_cuda = way in ("recorded", "replayed"), self.device.type == "cuda"
        optimizer = torch.optim.Adam(matcher.parameters(), lr=2e-4, fused=on_cuda, capturable=recorded)
        score: Callable[[Batch], tuple[torch.Tensor, dict[str, torch.Tensor]]] = matcher.logits_and_losses
        if way == "recorded":
            with kernels.use("auto"):
                compile_around_kernels(matcher)
        elif way == "compiled":
            score = torch.compile(matcher.logits_and_losses)
        elif way == "loop":

            def score(batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
                images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
                return LOOPS[matcher.name](matcher, images, texts), {}

        def step(batch: Batch) -> None:
            optimizer.zero_grad(set_to_none=True)
            with kernels.use({"fused": "triton", "recorded": "auto", "replayed": "auto"}.get(way, "plain")):
                with self.autocast(enabled=way != "loop"):
                    logits, losses = score(batch)
                gradients_of(logits, sum(losses.values()))
            torch.nn.utils.clip_grad_norm_(matcher.parameters(), 2.0)
            optimizer.step()

        def kernels_hold(batch: Batch) -> bool:
            with self.autocast():
                return matcher.kernels_hold(batch)

        return RecordedSteps(step, self.device, can_record=kernels_hold) if recorded else step

    def seconds(self, work: Callable[[], object]) -> float:
        """Median seconds of `work`, after three calls that are not counted."""
        for _ in range(3):
            work()
        self.wait()
        times: list[float] = []
        started = time.monotonic()
        patience = min(self.args.patience, max(0.0, self.remaining()))
        while len(times) < 3 or (len(times) < 20 and time.monotonic() - started < patience):
            work_started = time.perf_counter()
            repeats = 5 if self.device.type == "cuda" else 1  # so that a wait does not count for much
            for _ in range(repeats):
                work()
            self.wait()
            times.append((time.perf_counter() - work_started) / repeats)
        return sorted(times)[len(times) // 2]

    def few_seconds(self, work: Callable[[], object]) -> float:
        """Least seconds of up to three calls, of which one that takes longer than the patience is the last."""
        times: list[float] = []
        while len(times) < 3 and (not times or times[-1] < self.args.patience):
            started = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - started)
        return min(times)

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def forget_peak(self) -> None:
        """Count the peak of memory from here on, without what earlier measurements have left in cycles."""
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> dict[str, float]:
        """The peak of a CUDA device's memory, for a row."""
        return {"peak_gb": torch.cuda.max_memory_allocated() / 1e9} if self.device.type == "cuda" else {}


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, {torch.get_num_threads()} threads"
