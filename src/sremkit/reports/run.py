"""The report of one training run: curves, a table of epochs, record and recipe."""

from __future__ import annotations

import json
from typing import Any

from sremkit.data.noise import protocol_label
from sremkit.io import atomic_write
from sremkit.reports import figures
from sremkit.reports.page import render
from sremkit.training.run_folder import RunFolder

COLUMNS = {
    "epoch": ("epoch", lambda v: str(v + 1)),
    "loss": ("loss", lambda v: f"{v:.4f}"),
    "val/rsum": ("val R_sum", lambda v: f"{v:.1f}"),
    "val/i2t/R@1": ("i2t R@1", lambda v: f"{v:.1f}"),
    "val/t2i/R@1": ("t2i R@1", lambda v: f"{v:.1f}"),
    "selected_i2t": ("selected (image)", lambda v: f"{100 * v:.1f} %"),
    "selected_t2i": ("selected (text)", lambda v: f"{100 * v:.1f} %"),
    "selected_wrong": ("mismatched among selected", lambda v: f"{100 * v:.2f} %"),
    "noisy_gradient_ratio": ("noisy gradients", lambda v: f"{100 * v:.2f} %"),
    "time/train_seconds": ("seconds", lambda v: f"{v:.1f}"),
}
NOT_LOSSES = ("step", "epoch", "warmup", "learning_rate", "selected", "noisy", "val/", "time/")


def write_run_report(folder: RunFolder) -> None:
    """Write `report.html` into the run's folder."""
    history, record = folder.read_metrics(), folder.read_record()
    if not history:
        return
    noise = record["noise"]
    shown = [key for key in COLUMNS if any(key in row for row in history)]
    page = render(
        "run.html",
        title=record["recipe"],
        lead=f"{record['pairs']:,} training pairs, {100 * noise['rate']:.1f} % of them mismatched by injected noise "
        f"({protocol_label(noise['protocol'])}, index {noise['hash']}); seed {record['seed']}, single model.",
        figures=run_figures(history),
        columns=[COLUMNS[key][0] for key in shown],
        rows=[[COLUMNS[key][1](row[key]) if key in row else "" for key in shown] for row in history],
        record=json.dumps(record, indent=2),
        config=folder.config.read_text(encoding="utf-8"),
    )
    atomic_write(folder.report, page)


def run_figures(history: list[dict[str, Any]]) -> list[str]:
    """Curves of recall, of the parts of the loss, and of what the method selected."""

    def points(key: str, factor: float = 1.0) -> list[tuple[float, float]]:
        return [(row["epoch"] + 1, factor * row[key]) for row in history if key in row]

    drawn = []
    if "val/rsum" in history[0]:
        recall = {"validation R_sum": points("val/rsum")}
        drawn.append(figures.curves(recall, xlabel="epoch", ylabel="R_sum", title="Recall"))
    losses = [key for key in history[-1] if not key.startswith(NOT_LOSSES)]
    parts = {key: points(key) for key in losses[:5]}
    drawn.append(figures.curves(parts, xlabel="epoch", ylabel="mean over batches", title="Loss and its parts"))
    shares = {
        "selected (image)": points("selected_i2t", 100),
        "selected (text)": points("selected_t2i", 100),
        "mismatched among selected": points("selected_wrong", 100),
        "noisy gradients": points("noisy_gradient_ratio", 100),
    }
    shares = {name: line for name, line in shares.items() if line}
    if shares:
        drawn.append(figures.curves(shares, xlabel="epoch", ylabel="per cent", title="Selected pairs"))
    return drawn
