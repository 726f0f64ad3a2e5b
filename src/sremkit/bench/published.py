"""Published numbers with their sources, shown next to ours and never mixed with them.

`published.csv` has a row for each number: `source` and `table` say where it was read, and `read_in` whether that is the
method's own paper or a comparison table of another one. Where the source gives no recalls, their columns are empty.
"""

from __future__ import annotations

import csv
from collections.abc import Collection
from functools import cache
from importlib import resources
from typing import Any

from sremkit.bench.tables import Table
from sremkit.methods import METHODS

# Names of the source: its SGRAF is the mean of SAF and SGR trained separately, and a plain backbone is trained with the
# triplet loss on the hardest negative.
PUBLISHED_BACKBONES = {"saf+sgr": "sgraf", "sgr+saf": "sgraf"}
PUBLISHED_METHODS = {"hinge": "plain"}
REAL_NOISE = ("cc152k",)  # web collections with mismatches of their own; no noise is added by default
PUBLISHED_NOTE = (
    "The published sgraf is SAF and SGR trained separately, here saf+sgr; the backbone sgraf trains them jointly here. "
    "Published plain is hinge here. The source states neither its seeds nor whether its noise is per caption or image."
)


def published_results(data: str, noise_rates: Collection[float] | None = None) -> list[dict[str, str]]:
    """Recalls on "f30k", "coco" (1K: the mean of five folds) or "cc152k".

    Args:
        noise_rates: rates of added noise, 0 for a collection with real noise; all rows when absent.
    """
    rows = [row for row in read_published("published.csv") if row["data"] == data]
    return [row for row in rows if noise_rates is None or float(row["noise_rate"] or 0) in noise_rates]


def published_rsum(row: dict[str, Any]) -> str | None:
    """The published R_sum for data, backbone, method, noise rate and test folds of a row of ours, if there is one."""
    backbone, method = row["backbone"], row["method"]
    wanted = (
        PUBLISHED_BACKBONES.get(backbone, backbone),
        PUBLISHED_METHODS.get(method, method),
        str(int(row.get("test_folds") or 1)),
    )
    for published in published_results(row["data"], [row["rate"]]):
        if (published["model"], published["method"], published["folds"]) == wanted:
            return published["rsum"]
    return None


def add_published(table: Table, data: str, rates: set[float], shown: dict[str, str]) -> None:
    """Sections with the published results for these data and rates, and a note on how to read them."""
    sections: dict[str, list[list[str]]] = {}
    for row in sorted(published_results(data, rates), key=_is_ensemble):
        kind = "ensembles" if _is_ensemble(row) else "single models"
        folds = f", mean of {row['folds']} folds" if row["folds"] != "1" else ""
        place = f"{row['source']}, table {row['table']}" if row["table"] else row["source"]
        heading = f"published, not measured by us: {place}, {data}{folds}: {kind}"
        remark = f" ({row['remark']})" if row["remark"] else ""
        cells = [row.get(key.removeprefix("test_")) or "-" for key in shown]
        noise = row["noise_rate"] or noise_label(data, 0)
        line = [row["model"], noise, row["method"] + remark, "-", "-", *cells]
        sections.setdefault(heading, []).append(line)
    for heading, lines in sections.items():
        table.add_section(heading, lines)
    if sections:
        table.notes.append(PUBLISHED_NOTE)


def _is_ensemble(row: dict[str, str]) -> bool:
    """Whether a published result is that of several networks: of SAF and SGR, or of a method that trains two."""
    return row["model"] == "sgraf" or (row["method"] in METHODS and METHODS[row["method"]].networks > 1)


def noise_label(data: str, rate: float) -> str:
    """The noise of a row: the added rate, or "real" for a collection with noise of its own."""
    if data not in REAL_NOISE:
        return f"{rate:g}"
    return f"real + {rate:g}" if rate else "real"


@cache  # read once per table, not once per row
def read_published(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file of this package."""
    text = resources.files("sremkit.bench").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
