"""Stacked histograms as inline SVG whose colours come from the page, so that light and dark both suit them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

import numpy as np

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 40  # room for the labels around the plot


def stacked_histogram(
    groups: Mapping[str, np.ndarray], *, limits: tuple[float, float], xlabel: str, title: str, bins: int = 40
) -> str:
    """Bars of all groups on top of each other, the first at the bottom.

    Args:
        groups: CSS class of the bars -> finite values. Values beyond the limits count in the outermost bars.
        title: read out by screen readers in place of the picture.
    """
    low, high = limits
    least = 1e-6 * max(1.0, abs(low), abs(high))  # equal values, too, need bars of some width
    edges = np.linspace(low, max(high, low + least), bins + 1)
    counts = {name: np.histogram(np.clip(v, *edges[[0, -1]]), edges)[0] for name, v in groups.items()}
    ceiling = _round_up(max(1, int(sum(counts.values(), np.zeros(bins, int)).max())))
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for share in (0, 0.5, 1):
        y = TOP + plot_height * (1 - share)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{ceiling * share:,.0f}</text>')
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
    for value in _round_values(edges[0], edges[-1]):
        x = LEFT + plot_width * (value - edges[0]) / (edges[-1] - edges[0])
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:.6g}</text>')
    middle = LEFT + plot_width / 2
    parts.append(
        f'<text x="{middle:.1f}" y="{HEIGHT - 5}" text-anchor="middle">{escape(xlabel)}</text></svg>'
    )
    return "".join(parts)


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
