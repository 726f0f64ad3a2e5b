"""The report page of a large audit: made of rows drawn evenly from all, so that it needs no more than these."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sremkit.audit.audit import Audit
from sremkit.audit.by_shard.plan import Plan
from sremkit.audit.by_shard.preparing import open_pairs
from sremkit.audit.report import write_report
from sremkit.audit.stages import SUMMARY
from sremkit.audit.table import PAIRS, arrow, write_table
from sremkit.errors import DataError
from sremkit.training.checkpoint import replace_file

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL.Image import Image

MOST_ROWS = 100_000
OPEN_SHARDS = 4


class Excerpt:
    """Every k-th row of the table, and where it came from."""

    def __init__(self, num_rows: int, most: int | None = None) -> None:
        self.step = max(-(-num_rows // (most or MOST_ROWS)), 1)
        self._seen = 0
        self._pieces: list[pa.Table] = []
        self._places: list[np.ndarray] = []  # (k, 2): number of the shard, row in it

    def add(self, piece: pa.Table, number: int, first_row: int) -> None:
        rows = np.arange(-self._seen % self.step, len(piece), self.step)
        self._seen += len(piece)
        if len(rows):
            self._pieces.append(piece.take(rows))
            self._places.append(np.stack([np.full(len(rows), number), first_row + rows], axis=1))

    def table(self) -> pa.Table:
        return arrow().concat_tables(self._pieces)

    def places(self) -> np.ndarray:
        return np.concatenate(self._places)


def write_page(plan: Plan, excerpt: Excerpt, summary: dict[str, Any]) -> Path:
    """Write report.html; where it shows only some of the rows it says so."""
    folder = plan.out / "page"
    folder.mkdir(exist_ok=True)
    table, places = excerpt.table(), excerpt.places()
    if excerpt.step > 1:
        some = (
            f"examples, duplicates and histograms are of {len(table):,} rows, every {excerpt.step}th of all"
        )
        summary = {**summary, "note": "; ".join(s for s in (summary["note"], some) if s)}
    write_table(table, folder / PAIRS)
    replace_file(folder / SUMMARY, json.dumps(summary, ensure_ascii=False))

    @lru_cache(maxsize=OPEN_SHARDS)
    def opened(number: int) -> Audit | None:
        try:
            return Audit(open_pairs(plan, number))
        except DataError:
            return None

    def picture_of(row: int) -> Image | None:
        audit = opened(int(places[row, 0]))
        return None if audit is None else audit.picture_of(int(places[row, 1]))

    has_pictures = plan.shards[0].text_path is None
    return write_report(folder, picture_of=picture_of if has_pictures else None, out=plan.out / "report.html")
