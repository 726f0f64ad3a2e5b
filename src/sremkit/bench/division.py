"""What the division of the pairs by each method is worth, and what the method costs.

The division is that of the last epoch, against the ground truth; its history is in the cells. A time is that of an
epoch, with what happens before its first batch, relative to InfoNCE on the same backbone and noise. Memory is all that
the method keeps between batches, by the number of training pairs; the weights of the networks are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from sremkit.bench.published import noise_label
from sremkit.bench.tables import Table, grouped, mean_and_deviation

BASELINE = "infonce"
COLUMNS = {
    "division_precision": "precision",
    "division_recall": "recall",
    "division_auroc": "AUROC",
    "rematched_right": "re-matched right",
    "relative_seconds": "time/InfoNCE",
    "memory_bytes_per_pair": "bytes/pair",
}


def with_relative_seconds(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with "relative_seconds", where InfoNCE was run on the same data, backbone, noise and device, or None."""
    places = [(row["data"], row["backbone"], row["rate"], row.get("device")) for row in rows]
    seconds: dict[tuple, list[float]] = {}
    for place, row in zip(places, rows, strict=True):
        if row["method"] == BASELINE and "seconds_per_epoch" in row:
            seconds.setdefault(place, []).append(epoch_seconds(row))
    result = []
    for place, row in zip(places, rows, strict=True):
        base = fmean(seconds[place]) if place in seconds else None
        known = base is not None and "seconds_per_epoch" in row
        result.append({**row, "relative_seconds": epoch_seconds(row) / base if known and base else None})
    return result


def epoch_seconds(row: dict[str, Any]) -> float:
    """Mean seconds of an epoch of a cell, with what happens before its first batch."""
    return float(row["seconds_per_epoch"]) + float(row["filter_seconds_per_epoch"])


def division_table(rows: Sequence[dict[str, Any]], *, title: str) -> Table:
    """Mean ± standard deviation over seeds, a line for each backbone, noise rate and method."""
    table = Table(title, ["backbone", "noise", "method", "seeds", "networks", *COLUMNS.values()], labels=3)
    lines = []
    for (backbone, rate, method), members in grouped(with_relative_seconds(rows), "backbone", "rate", "method").items():
        cells = [_cell([m[key] for m in members if m.get(key) is not None], key) for key in COLUMNS]
        noise = noise_label(members[0]["data"], rate)
        lines.append([backbone, noise, method, str(len(members)), str(members[0].get("networks", 1)), *cells])
    table.add_section("wrong pairs found by the division of the last epoch, and cost", lines)
    return table


def _cell(values: list[float], key: str) -> str:
    if key == "memory_bytes_per_pair":
        return f"{fmean(values):.0f}" if values else "-"
    if key == "relative_seconds":
        return f"{fmean(values):.1f}" if values else "-"
    return mean_and_deviation(values, key)
