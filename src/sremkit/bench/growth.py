"""How the cost of a training step grows: with the batch, the words, the regions and the width, one at a time.

`srem bench growth saf sgr scan-t2i -o runs/growth.csv` doubles one size while the others stay at the published
ones (batch 128, captions of 16 words, 36 regions, width 1,024), prints a row as soon as it is measured, and
draws the four as straight lines on logarithmic axes. The number beside a line is its slope at the large end:
1 is proportional, 2 the square.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sremkit.bench.backbones import IMAGE_DIM, OPTIONS, WORDS, make_batch
from sremkit.bench.figures import new_axes, save_figure
from sremkit.bench.stepping import FUSED, SMALL, WITH_NODES, Bench
from sremkit.errors import UserError
from sremkit.extras import require
from sremkit.models import BACKBONES, build_matcher
from sremkit.reports.figures import COLORS

STYLES = {"replayed": "-", "fused": "-.", "plain": "--"}


class Sizes(NamedTuple):
    """What a step is fed with."""

    batch: int = 128
    words: int = 16
    regions: int = 36
    width: int = 1024


#: What each size becomes in turn. The kernels hold 64 regions and captions of 63 words in float32.
GROWN = {
    "batch": (32, 64, 128, 256, 512),
    "words": (4, 8, 16, 32),
    "regions": (8, 16, 32, 64),
    "width": (256, 512, 1024, 2048),
}
SMALL_SIZES = Sizes(batch=3, words=3, regions=3, width=8)
SMALL_GROWN = {"batch": (2, 4, 8), "words": (2, 4, 8), "regions": (2, 4, 8), "width": (8, 16, 32)}


def step_row(bench: Bench, name: str, way: str, axis: str, sizes: Sizes) -> dict[str, Any]:
    """One training step of these sizes."""
    small = bench.args.small
    options = {**(SMALL if small else OPTIONS.get(name, WORDS)), "embed_size": sizes.width}
    if name in WITH_NODES:
        options |= {"num_regions": sizes.regions, **({"sim_dim": 8} if small else {})}
    torch.manual_seed(0)
    matcher = build_matcher(name, **options).to(bench.device).train()
    words = (sizes.words, sizes.words)
    image_dim = int(SMALL["image_dim"]) if small else IMAGE_DIM
    batch = make_batch(name, sizes.batch, words=words, regions=sizes.regions, image_dim=image_dim)
    batch = batch.to(bench.device)
    step = bench.step_of(matcher, way)
    bench.forget_peak()
    seconds = bench.seconds(lambda: step(batch))
    row: dict[str, Any] = {"backbone": name, "way": way, "axis": axis, "size": getattr(sizes, axis)}
    return row | sizes._asdict() | {"seconds": seconds} | bench.peak()


def _jobs(args: argparse.Namespace, *, on_cuda: bool) -> Iterator[tuple[str, str, str, Sizes]]:
    usual, grown = (SMALL_SIZES, SMALL_GROWN) if args.small else (Sizes(batch=args.batch_size), GROWN)
    for axis, values in grown.items():
        for name in args.backbones:
            for way in args.ways:
                if way == "fused" and name not in FUSED:
                    continue
                if way == "replayed" and not (on_cuda and BACKBONES[name].recordable):
                    continue  # launched one by one, small steps all take as long as their launches
                for value in values:
                    yield name, way, axis, usual._replace(**{axis: value})


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure what fits the budget, then draw it; what fails, mostly for want of memory, is kept in `failed`."""
    unknown = sorted({"dual", "clip"} & set(args.backbones))
    if unknown:
        raise UserError(f"{', '.join(unknown)}: growth is measured for backbones with words and regions")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    bench = Bench(args)
    bench.result["failed"] = []
    print(bench.describe())
    jobs = list(_jobs(args, on_cuda=bench.device.type == "cuda"))
    if not jobs:
        raise UserError(
            f"{', '.join(args.ways)}: there is no such way for {', '.join(args.backbones)} here; try --ways plain"
        )
    for name, way, axis, sizes in jobs:
        head = f"{axis:<8} {getattr(sizes, axis):>5}  {name:<10} {way:<8}"
        if bench.remaining() <= 0:
            print(f"{head} skipped: nothing is left of the budget")
            continue
        try:
            row = step_row(bench, name, way, axis, sizes)
        except Exception as error:  # one size that fails must not cost the others
            print(f"{head} FAILED: {type(error).__name__}: {str(error)[:300]}", flush=True)
            bench.result["failed"].append(
                {"backbone": name, "way": way, "axis": axis, "error": type(error).__name__}
            )
            continue
        peak = f" {row['peak_gb']:>7.2f} GB" if "peak_gb" in row else ""
        bench.keep(row, f"{head} {1e3 * row['seconds']:>9.2f} ms{peak}")
    if bench.result["rows"]:
        files = draw(bench.result["rows"], args.out.with_suffix(""), title=bench.result["machine"])
        print("\n".join(map(str, [args.out, *files])))
    return bench.result


def slope(points: list[tuple[float, float]]) -> float:
    """Of the line through the last three points, on logarithmic axes: the exponent of the growth."""
    logs = [(math.log(x), math.log(y)) for x, y in sorted(points)[-3:]]
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread if spread else math.nan


def draw(rows: list[dict[str, Any]], stem: Path, *, title: str = "") -> list[Path]:
    """Four panels of milliseconds a step, as PNG and SVG."""
    figure, axes = new_axes(2, 2, width=9.6, height=7.2)
    ticker = require("matplotlib.ticker", extra="report", purpose="draw figures")
    plain_numbers = ticker.LogFormatter(labelOnlyBase=False, minor_thresholds=(1, 0.5))
    names = list(dict.fromkeys(row["backbone"] for row in rows))
    for axis, panel in zip(Sizes._fields, axes, strict=True):
        ends = []
        for (name, way), points in _lines(rows, axis).items():
            x, y = zip(*points, strict=True)
            color = COLORS[names.index(name) % len(COLORS)]
            panel.plot(x, y, STYLES[way], color=color, marker="o", markersize=3.5, label=f"{name}, {way}")
            ends.append((y[-1], x[-1], f"{slope(points):.2f}", color))
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        _write_beside(panel, ends)
        values = sorted({float(row["size"]) for row in rows if row["axis"] == axis})
        panel.set_xticks(values, [f"{value:g}" for value in values])
        panel.set_xlabel({"width": "width of embeddings", "words": "words of a caption"}.get(axis, axis))
        panel.yaxis.set_major_formatter(plain_numbers)
        panel.yaxis.set_minor_formatter(plain_numbers)
        panel.grid(visible=True, which="major", linewidth=0.4, alpha=0.5)
    for panel in axes[::2]:
        panel.set_ylabel("ms a training step")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(names), frameon=False)
    figure.suptitle(f"Cost of a training step, slopes beside the lines ({title})", fontsize=10)
    return save_figure(figure, stem)


def _lines(rows: list[dict[str, Any]], axis: str) -> dict[tuple[str, str], list[tuple[float, float]]]:
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        if row["axis"] == axis:
            point = (float(row["size"]), 1e3 * float(row["seconds"]))
            found.setdefault((row["backbone"], row["way"]), []).append(point)
    return {line: sorted(points) for line, points in found.items()}


def _write_beside(panel: Any, ends: list[tuple[float, float, str, str]]) -> None:
    """The slopes at the ends of their lines, moved apart where lines end close together."""
    low, high = panel.get_ylim()
    step = (high / low) ** 0.055
    above = 0.0
    for y, x, text, color in sorted(ends):
        above = max(y, above * step)
        panel.annotate(text, (x, above), xytext=(6, 0), textcoords="offset points", color=color,
                       fontsize=8, va="center", annotation_clip=False)  # fmt: skip
