"""Figures of the reports as inline SVG: curves and histograms by matplotlib, stacked histograms by hand.

Colours of axes and text come from the page, so that the figures suit its light and its dark scheme.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from sremkit.extras import require

# Distinguishable with any colour vision, and by their lightness in print.
COLORS = ("#0b6e99", "#d9730d", "#6c4ab6", "#448361", "#c4554d")
WIDTH, HEIGHT = 360, 210  # of a stacked histogram
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 40  # room for the labels around the plot


def curves(series: Mapping[str, Sequence[tuple[float, float]]], *, xlabel: str, ylabel: str, title: str) -> str:
    """Lines over a common axis: name -> points."""
    figure, axes = _canvas(title)
    for (name, points), color in zip(series.items(), COLORS, strict=False):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, marker="o", markersize=3.5, linewidth=1.8, color=color, label=name)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(frameon=False)
    return _svg(figure)


def histograms(groups: Mapping[str, np.ndarray], *, xlabel: str, title: str, bins: int = 50) -> str:
    """Overlaid distributions over common bins: name -> values."""
    figure, axes = _canvas(title)
    everything = np.concatenate(list(groups.values()))
    edges = np.linspace(everything.min(), everything.max() + 1e-9, bins + 1)
    for (name, values), color in zip(groups.items(), COLORS, strict=False):
        axes.hist(values, bins=edges, alpha=0.6, color=color, label=f"{name} ({len(values):,})")
    axes.set_xlabel(xlabel)
    axes.set_ylabel("pairs")
    axes.margins(y=0.22)  # room for the legend above the tallest bar
    axes.legend(frameon=False, ncols=len(groups), loc="upper right")
    return _svg(figure)


def stacked_histogram(
    groups: Mapping[str, np.ndarray],
    *,
    limits: tuple[float, float],
    xlabel: str,
    title: str,
    bins: int = 40,
    cutoff: float | None = None,
    cutoff_label: str = "",
) -> str:
    """Bars of all groups on top of each other, the first at the bottom.

    Args:
        groups: CSS class of the bars -> finite values. Values beyond the limits count in the outermost bars.
        title: read out by screen readers in place of the image.
        cutoff: value at which a dashed line is drawn, with a label.
    """
    low, high = limits
    least = 1e-6 * max(1.0, abs(low), abs(high))  # equal values, too, need bars of some width
    edges = np.linspace(low, max(high, low + least), bins + 1)
    counts = {name: np.histogram(np.clip(v, *edges[[0, -1]]), edges)[0] for name, v in groups.items()}
    ceiling = _round_up(max(1, int(sum(counts.values(), np.zeros(bins, int)).max())))
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    parts = _begin_svg(title, {share: f"{ceiling * share:,.0f}" for share in (0, 0.5, 1)})
    base = np.zeros(bins)
    for name, count in counts.items():
        for k in np.flatnonzero(count):
            height = plot_height * count[k] / ceiling
            y = TOP + plot_height * (1 - base[k] / ceiling) - height
            parts.append(
                f'<rect class="{escape(name)}" x="{LEFT + plot_width * k / bins + 0.5:.1f}" y="{y:.2f}" '
                f'width="{plot_width / bins - 1:.2f}" height="{height:.2f}"/>'
            )
        base += count
    parts += _cutoff_line(cutoff, edges[0], edges[-1], cutoff_label)
    return "".join(parts + _end_svg(edges[0], edges[-1], xlabel))


def line_chart(
    x: np.ndarray,
    lines: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    title: str,
    cutoff: float | None = None,
    cutoff_label: str = "",
) -> str:
    """Lines over a common axis: CSS class -> values, NaN where there are none; a dashed line at the cutoff."""
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    ceiling = max(float(np.nanmax(np.concatenate([np.asarray(v, dtype=float) for v in lines.values()]))), 1e-9)
    low, high = float(x[0]), float(x[-1])
    parts = _begin_svg(title, {share: f"{ceiling * share:.2g}" for share in (0, 0.5, 1)})
    for name, values in lines.items():
        points = [
            f"{LEFT + plot_width * (a - low) / (high - low):.1f},{TOP + plot_height * (1 - b / ceiling):.1f}"
            for a, b in zip(x, values, strict=True)
            if math.isfinite(b)
        ]
        parts.append(f'<polyline class="{escape(name)}" points="{" ".join(points)}"/>')
    parts += _cutoff_line(cutoff, low, high, cutoff_label)
    return "".join(parts + _end_svg(low, high, xlabel))


def _begin_svg(title: str, labels: Mapping[float, str]) -> list[str]:
    """The opening tag, and lines at these shares of the height with their labels."""
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for share, label in labels.items():
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    return parts


def _end_svg(low: float, high: float, xlabel: str) -> list[str]:
    """The horizontal axis from low to high, and the closing tag."""
    plot_width, parts = WIDTH - LEFT - RIGHT, []
    for value in _round_values(low, high):
        x = LEFT + plot_width * (value - low) / (high - low)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:.6g}</text>')
    middle = LEFT + plot_width / 2
    return [*parts, f'<text x="{middle:.1f}" y="{HEIGHT - 5}" text-anchor="middle">{escape(xlabel)}</text></svg>']


def _cutoff_line(cutoff: float | None, low: float, high: float, label: str) -> list[str]:
    if cutoff is None:
        return []
    share = min(max((cutoff - low) / (high - low), 0.0), 1.0)
    x = LEFT + (WIDTH - LEFT - RIGHT) * share
    line = f'<line class="cutoff" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    side, anchor = (x + 5, "start") if share < 0.5 else (x - 5, "end")
    return (
        [line, f'<text x="{side:.1f}" y="{TOP + 9}" text-anchor="{anchor}">{escape(label)}</text>'] if label else [line]
    )


def new_axes(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure of matplotlib and its panels, row by row."""
    matplotlib = require("matplotlib", extra="report", purpose="draw figures")
    figures = require("matplotlib.figure", extra="report", purpose="draw figures")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "sremkit", "font.size": 10})
    figure = figures.Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flatten())
    for axis in axes:
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    return figure, axes


def _canvas(title: str) -> tuple[Any, Any]:
    figure, (axes,) = new_axes(1, 1, width=5.4, height=3.3)
    axes.set_title(title, fontsize=11, loc="left")
    return figure, axes


def _svg(figure: Any) -> str:
    text = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=no_metadata, transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]  # an XML declaration is not allowed inside HTML
    return svg.replace("#000000", "currentColor")


def _round_up(count: int) -> int:
    """The next even number with one or two leading digits, so that its half is a good label too."""
    step = max(2, 10 ** (len(str(count)) - 1) // 5)
    return -(-count // step) * step


def _round_values(low: float, high: float) -> list[float]:
    """Four to eight multiples of 1, 2 or 5 times a power of ten, in the interval."""
    unit = 10 ** math.floor(math.log10((high - low) / 4))
    step = max(k * unit for k in (1, 2, 5) if k * unit <= (high - low) / 4)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) + 0.0 for k in range(first, last + 1)]
