"""The paper's figures for your own runs, as PNG and SVG.

`curves`: recall and the share of the gradient from mismatched pairs, per epoch, for several methods. `cost`: recall
against the time of an epoch. `energies`:
histograms of the energies of matched and mismatched pairs during training. `examples`: the pairs of highest energy.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.bench.division import with_relative_seconds
from sremkit.bench.tables import grouped
from sremkit.config.recipes import Recipe
from sremkit.data import Pairs
from sremkit.errors import UserError
from sremkit.evaluation.scoring import in_batch_scores
from sremkit.experiment import Prepared, make_trainer, prepare
from sremkit.reports.figures import COLORS, new_axes
from sremkit.training.reporters import HistoryReporter

STAGES = (0.0, 0.2, 0.6, 1.0)  # of the epochs
MATCHED, MISMATCHED = COLORS[:2]
TEN_COLORS = (*COLORS, "#111111", "#e0489a", "#8c6d31", "#5ab4d6", "#8f8f8f")


def draw_curves(rows: Sequence[dict[str, Any]], stem: Path) -> list[Path]:
    """Validation recall and the share of the pull at mismatched pairs, mean over seeds.

    Args:
        rows: cells of the methods bench with their histories, all of one backbone and noise rate.
    """
    figure, axes = new_axes(1, 2, width=9.6, height=3.8)
    panels = ((axes[0], "val/rsum", 1.0), (axes[1], "noisy_pull_ratio", 100.0))
    for method, color in zip(dict.fromkeys(row["method"] for row in rows), TEN_COLORS, strict=False):
        histories = [row["history"] for row in rows if row["method"] == method]
        for axis, key, scale in panels:
            curve = mean_curve(histories, key)
            if curve:
                x, y = zip(*curve, strict=True)
                axis.plot(x, scale * np.array(y), "-", color=color, linewidth=1.6, label=method)
    for axis, title in zip(axes, ("validation R_sum", "pull at mismatched pairs, %"), strict=True):
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylim(0, None)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=5, fontsize=9)
    return save_figure(figure, stem)


def draw_cost(rows: Sequence[dict[str, Any]], stem: Path) -> list[Path]:
    """R_sum on the test split against the time of an epoch relative to InfoNCE, mean over seeds.

    Args:
        rows: cells of the methods bench, all of one backbone and noise rate, InfoNCE among them.
    """
    points = []
    for method, members in grouped(with_relative_seconds(rows), "method").items():
        costs = [member["relative_seconds"] for member in members if member["relative_seconds"] is not None]
        if not costs:
            raise UserError("the cost is relative to InfoNCE, and the CSV has no cell of it; add infonce to --methods")
        cost = float(np.mean(costs))
        recall = float(np.mean([float(member["test_rsum"]) for member in members]))
        points.append((method[0], cost, recall, int(members[0]["networks"])))
    figure, (axis,) = new_axes(1, 1, width=6.4, height=4.2)
    for networks, marker in ((1, "o"), (2, "s")):
        chosen = [point for point in points if point[3] == networks]
        if chosen:
            label = "one network" if networks == 1 else "two networks"
            axis.scatter(
                [p[1] for p in chosen], [p[2] for p in chosen], marker=marker, color=COLORS[networks - 1], label=label
            )
    height = max(p[2] for p in points) - min(p[2] for p in points)
    above: list[tuple[float, float]] = []  # points with a label above them
    for name, cost, recall, _ in sorted(points, key=lambda point: -point[2]):
        overlaps = any(0.6 < cost / x < 1.7 and abs(recall - y) <= 0.05 * height for x, y in above)
        place = (5, -10) if overlaps else (5, 4)
        axis.annotate(name, (cost, recall), textcoords="offset points", xytext=place, fontsize=8)
        above += [] if overlaps else [(cost, recall)]
    axis.set_xscale("log")
    axis.set_xticks([tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100) if tick <= max(p[1] for p in points)])
    axis.xaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.set_xlabel("time of an epoch, relative to InfoNCE")
    axis.set_ylabel("R_sum on the test split")
    axis.legend(frameon=False, fontsize=9, loc="lower right")
    return save_figure(figure, stem)


def energies_in_training(recipe: Recipe) -> tuple[Prepared, dict[float, np.ndarray]]:
    """Train the recipe; return the energies of all training pairs (mean of both directions) at each stage."""
    prepared = prepare(recipe)
    total = recipe.training.warmup_epochs + recipe.training.epochs
    found: dict[float, np.ndarray] = {}

    class EnergyRecorder(HistoryReporter):
        def epoch(self, row: dict[str, Any]) -> None:
            super().epoch(row)
            measure(row["epoch"] + 1)

    def measure(epochs_done: int) -> None:
        for stage in STAGES:
            if epochs_done == round(stage * total):
                scores = in_batch_scores(prepared.matcher, prepared.train, prepared.vocabulary, rounds=1)
                found[stage] = (scores.energy_i2t + scores.energy_t2i) / 2

    trainer = make_trainer(prepared, EnergyRecorder([]))
    measure(0)
    trainer.run()
    return prepared, found


def draw_energies(energies: dict[float, np.ndarray], is_noisy: np.ndarray, stem: Path) -> list[Path]:
    """Histograms of the energies of matched and mismatched pairs, one panel per stage."""
    figure, axes = new_axes(1, len(energies), width=3.2 * len(energies), height=2.8)
    for axis, (stage, values) in zip(axes, energies.items(), strict=True):
        low, high = np.quantile(values, [0.001, 0.999])
        edges = np.linspace(low, high, 51)
        for chosen, name, color in ((~is_noisy, "matched", MATCHED), (is_noisy, "mismatched", MISMATCHED)):
            axis.hist(values[chosen], bins=edges, alpha=0.6, color=color, label=name)
        axis.set_title("before training" if stage == 0 else f"after {stage:.0%} of training", fontsize=10)
        axis.set_xlabel("energy")
        axis.set_yticks([])
    axes[0].legend(frameon=False, fontsize=9)
    return save_figure(figure, stem)


def draw_examples(
    pairs: Pairs, energy: np.ndarray, is_noisy: np.ndarray | None, stem: Path, *, count: int = 8
) -> list[Path]:
    """The pairs of highest energy with their images, and whether noise changed them, where that is known."""
    if pairs.images is None:
        raise UserError(f"{pairs.name} has no images, so there are no examples to draw")
    columns = min(4, count)
    rows = -(-count // columns)
    figure, axes = new_axes(rows, columns, width=3.0 * columns, height=3.0 * rows)
    for axis, k in zip(axes, np.argsort(-energy)[:count], strict=True):
        axis.imshow(np.asarray(pairs.images.open(int(pairs.image_of_text[k]))))
        axis.set_axis_off()
        truth = "" if is_noisy is None else (", noisy" if is_noisy[k] else ", clean")
        caption = textwrap.shorten(pairs.texts[k], 110)
        axis.set_title(f"{textwrap.fill(caption, 36)}\n({energy[k]:.1f}{truth})", fontsize=8)
    return save_figure(figure, stem)


def mean_curve(histories: Sequence[Sequence[dict[str, Any]]], key: str) -> list[tuple[int, float]]:
    """Points (epoch from 1, mean over the runs with that metric)."""
    values: dict[int, list[float]] = {}
    for history in histories:
        for row in history:
            if key in row:
                values.setdefault(int(row["epoch"]) + 1, []).append(row[key])
    return [(epoch, float(np.mean(numbers))) for epoch, numbers in sorted(values.items())]


def save_figure(figure: Any, stem: Path) -> list[Path]:
    """Write the figure as PNG and SVG."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    # Not `with_suffix`: a name may contain a dot, as in 0.6.
    files = [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "svg")]
    for file in files:
        figure.savefig(file, dpi=160)
    return files
