"""Numbers that others have printed, each with its source; shown beside ours and never mixed with them."""

from __future__ import annotations

import csv
from importlib import resources


def published_results(data: str, noise_rate: float | None = None) -> list[dict[str, str]]:
    """Recalls on "f30k", "coco" (1K) or "cc152k"; a noise rate where the collection itself has none."""
    rows = _read("published.csv")
    wanted = [row for row in rows if row["data"] == data]
    if noise_rate is None:
        return wanted
    return [row for row in wanted if row["noise_rate"] == "" or float(row["noise_rate"]) == noise_rate]


def published_efficiency() -> list[dict[str, str]]:
    return _read("published_efficiency.csv")


def published_ablation() -> list[dict[str, str]]:
    return _read("published_ablation.csv")


def _read(name: str) -> list[dict[str, str]]:
    text = resources.files("sremkit.bench").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
