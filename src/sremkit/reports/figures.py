"""The few kinds of figure that reports show, drawn by matplotlib and returned as inline SVG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sremkit.extras import require

# Distinguishable with any colour vision, and by their lightness in print.
COLORS = ("#0b6e99", "#d9730d", "#6c4ab6", "#448361", "#c4554d")


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]], *, xlabel: str, ylabel: str, title: str
) -> str:
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


def _canvas(title: str) -> tuple[Any, Any]:
    matplotlib = require("matplotlib", extra="report", purpose="draw the figures of a report")
    figures = require("matplotlib.figure", extra="report", purpose="draw the figures of a report")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "sremkit", "font.size": 10})
    figure = figures.Figure(figsize=(5.4, 3.3), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _svg(figure: Any) -> str:
    text = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=no_metadata, transparent=True)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]  # the XML head has no place inside a page
