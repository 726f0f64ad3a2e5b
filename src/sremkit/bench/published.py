"""Numbers that others have printed, each with its source; shown beside ours and never mixed with them."""

from __future__ import annotations

import csv
from collections.abc import Collection
from functools import cache
from importlib import resources

# What the sources call by other names than we: SGRAF is the mean of SAF and SGR trained apart, and a plain backbone
# is trained with a margin to the hardest negative.
BACKBONES = {"saf+sgr": "sgraf", "sgr+saf": "sgraf"}
METHODS = {"hinge": "plain"}


def published_results(data: str, noise_rates: Collection[float] | None = None) -> list[dict[str, str]]:
    """Recalls on "f30k", "coco" (1K: the mean of five folds) or "cc152k".

    Args:
        noise_rates: only with these added; 0 for a collection whose noise is its own. All without it.
    """
    rows = [row for row in _read("published.csv") if row["data"] == data]
    return [row for row in rows if noise_rates is None or float(row["noise_rate"] or 0) in noise_rates]


def published_rsum(data: str, backbone: str, method: str, noise_rate: float, *, folds: int) -> str | None:
    """What was printed for the same backbone, method, added noise and test; None where nothing was.

    Args:
        backbone: in our words, as are the others: "saf+sgr".
        folds: of the test split over which recalls are averaged.
    """
    wanted = (BACKBONES.get(backbone, backbone), METHODS.get(method, method), str(folds))
    for row in published_results(data, [noise_rate]):
        if (row["model"], row["method"], row["folds"]) == wanted:
            return row["rsum"]
    return None


def published_efficiency() -> list[dict[str, str]]:
    return _read("published_efficiency.csv")


def published_ablation() -> list[dict[str, str]]:
    return _read("published_ablation.csv")


@cache  # a table asks for each of its rows
def _read(name: str) -> list[dict[str, str]]:
    text = resources.files("sremkit.bench").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
