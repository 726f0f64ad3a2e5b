"""How the cost of a training step grows with batch size, words, regions and width.

    python -m benchmarks.growth saf sgr scan-t2i -o runs/growth.csv

Doubles one size while the others stay at the published ones (batch 128, captions of 16 words, 36 regions, width 1,024),
prints each row when it is measured, and plots the four on logarithmic axes. Each curve is labelled with its slope at
the large end: 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.commands import make_parser, run_command
from benchmarks.steps import MODES, StepBenchmark, add_step_arguments
from sremkit.bench.figures import save_figure
from sremkit.errors import UserError
from sremkit.extras import require
from sremkit.models import BACKBONES
from sremkit.reports.figures import COLORS, new_axes

STYLES = {"triton-graph": "-", "triton": "-.", "eager": "--"}


class Sizes(NamedTuple):
    """Sizes of a step."""

    batch: int = 128
    words: int = 16
    regions: int = 36
    width: int = 1024


#: Values of each size. The kernels support 64 regions and captions of 63 words in float32.
GROWN = {
    "batch": (32, 64, 128, 256, 512),
    "words": (4, 8, 16, 32),
    "regions": (8, 16, 32, 64),
    "width": (256, 512, 1024, 2048),
}
SMALL_SIZES = Sizes(batch=3, words=3, regions=3, width=8)
SMALL_GROWN = {"batch": (2, 4, 8), "words": (2, 4, 8), "regions": (2, 4, 8), "width": (8, 16, 32)}


def step_row(bench: StepBenchmark, name: str, mode: str, axis: str, sizes: Sizes) -> dict[str, Any]:
    """One training step of these sizes."""
    matcher = bench.build(name, embed_size=sizes.width, num_regions=sizes.regions).train()
    words = (sizes.words, sizes.words)
    batch = bench.batch(name, sizes.batch, words=words, regions=sizes.regions)
    step = bench.step(matcher, mode)
    bench.reset_peak()
    seconds = bench.seconds(lambda: step(batch))
    row: dict[str, Any] = {"backbone": name, "mode": mode, "axis": axis, "size": getattr(sizes, axis)}
    return row | sizes._asdict() | {"seconds": seconds} | bench.peak()


def _measurements(bench: StepBenchmark) -> Iterator[tuple[str, str, str, Sizes]]:
    args = bench.args
    published, grown = (SMALL_SIZES, SMALL_GROWN) if args.small else (Sizes(batch=args.batch_size), GROWN)
    for axis, values in grown.items():
        for name in args.backbones:
            for mode in args.modes:
                if bench.supports(name, mode):
                    for value in values:
                        yield name, mode, axis, published._replace(**{axis: value})


def run(args: argparse.Namespace) -> StepBenchmark:
    """Measure what fits the budget, then draw it; a size that fails, mostly for lack of memory, is reported."""
    inputs = {name: (BACKBONES[name].image_input, BACKBONES[name].text_input) for name in args.backbones}
    unfit = [name for name, given in inputs.items() if given != ("regions", "words")]
    if unfit:
        raise UserError(f"{', '.join(unfit)}: growth is measured for backbones with words and regions")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    bench = StepBenchmark(args)
    print(bench.describe())
    measurements = list(_measurements(bench))
    if not measurements:
        raise UserError(f"{', '.join(args.backbones)} cannot run as {', '.join(args.modes)} here; try --modes eager")
    for name, mode, axis, sizes in measurements:
        head = f"{axis:<8} {getattr(sizes, axis):>5}  {name:<10} {mode:<14}"
        if bench.remaining() <= 0:
            print(f"{head} skipped: the time budget is spent")
            continue
        try:
            row = step_row(bench, name, mode, axis, sizes)
        except Exception as error:  # the other sizes go on
            bench.fail(head, error, backbone=name, mode=mode, axis=axis)
            continue
        peak = f" {row['peak_gb']:>7.2f} GB" if "peak_gb" in row else ""
        bench.add(row, f"{head} {1e3 * row['seconds']:>9.2f} ms{peak}")
    if bench.result["rows"]:
        files = draw(bench.result["rows"], args.out.with_suffix(""), title=bench.result["machine"])
        print("\n".join(map(str, [args.out, *files])))
    return bench


def slope(points: list[tuple[float, float]]) -> float:
    """Slope of the line through the last three points on logarithmic axes: the exponent of the growth."""
    logs = [(math.log(x), math.log(y)) for x, y in sorted(points)[-3:]]
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread if spread else math.nan


def draw(rows: list[dict[str, Any]], stem: Path, *, title: str = "") -> list[Path]:
    """Four panels of milliseconds per step, as PNG and SVG."""
    figure, axes = new_axes(2, 2, width=9.6, height=7.2)
    ticker = require("matplotlib.ticker", extra="report", purpose="draw figures")
    plain_numbers = ticker.LogFormatter(labelOnlyBase=False, minor_thresholds=(1, 0.5))
    names = list(dict.fromkeys(row["backbone"] for row in rows))
    for axis, panel in zip(Sizes._fields, axes, strict=True):
        ends = []
        for (name, mode), points in _lines(rows, axis).items():
            x, y = zip(*points, strict=True)
            color = COLORS[names.index(name) % len(COLORS)]
            panel.plot(x, y, STYLES[mode], color=color, marker="o", markersize=3.5, label=f"{name}, {mode}")
            ends.append((y[-1], x[-1], f"{slope(points):.2f}", color))
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        _label_slopes(panel, ends)
        values = sorted({float(row["size"]) for row in rows if row["axis"] == axis})
        panel.set_xticks(values, [f"{value:g}" for value in values])
        panel.set_xlabel({"width": "width of embeddings", "words": "words of a caption"}.get(axis, axis))
        panel.yaxis.set_major_formatter(plain_numbers)
        panel.yaxis.set_minor_formatter(plain_numbers)
        panel.grid(visible=True, which="major", linewidth=0.4, alpha=0.5)
    for panel in axes[::2]:
        panel.set_ylabel("ms per training step")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(names), frameon=False)
    figure.suptitle(f"Cost of a training step, slopes at the curves ({title})", fontsize=10)
    return save_figure(figure, stem)


def _lines(rows: list[dict[str, Any]], axis: str) -> dict[tuple[str, str], list[tuple[float, float]]]:
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        if row["axis"] == axis:
            point = (float(row["size"]), 1e3 * float(row["seconds"]))
            found.setdefault((row["backbone"], row["mode"]), []).append(point)
    return {line: sorted(points) for line, points in found.items()}


def _label_slopes(panel: Any, ends: list[tuple[float, float, str, str]]) -> None:
    """Write the slopes at the ends of their curves, spaced where curves end close together."""
    low, high = panel.get_ylim()
    step = (high / low) ** 0.055
    above = 0.0
    for y, x, text, color in sorted(ends):
        above = max(y, above * step)
        panel.annotate(text, (x, above), xytext=(6, 0), textcoords="offset points", color=color,
                       fontsize=8, va="center", annotation_clip=False)  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("growth", __doc__)
    add_step_arguments(parser, backbones=["saf", "sgr", "scan-t2i"], modes={mode: MODES[mode] for mode in STYLES})
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/bench-growth.csv"),
                        help="CSV file; the figure gets the same name, as PNG and SVG")  # fmt: skip
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(build_parser(), lambda args: run(args).exit_code(), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
