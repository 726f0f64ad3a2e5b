"""Export of an audit: the pairs to keep, or to drop, in the format that the next tool reads.

The table is read and written in chunks, so that memory does not grow with the number of pairs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sremkit.audit.decisions import read_decisions
from sremkit.audit.filtered import filter_facts, share_left_before, write_filter_facts
from sremkit.audit.result_table import ResultTable, read_summary, write_table
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.scoring.remaining_mismatches import Remaining, remaining
from sremkit.audit.scoring.types import NearMismatches, NoiseRate
from sremkit.audit.selection import Select, Selection
from sremkit.audit.writers.fiftyone import write_fiftyone
from sremkit.audit.writers.ids import write_keep_list, write_uids
from sremkit.audit.writers.shards import write_shards
from sremkit.audit.writers.tables import write_csv, write_parquet
from sremkit.errors import DataError, UserError
from sremkit.io import atomic_write, atomic_write_folder, remove_partials_of, sole_writer

if TYPE_CHECKING:
    import pyarrow as pa

EXPORTS: dict[str, Callable[[Selection, Path], None]] = {
    "keep-list": write_keep_list,
    "csv": write_csv,
    "parquet": write_parquet,
    "shards": write_shards,
    "uids": write_uids,
    "fiftyone": write_fiftyone,
}
FOLDERS = ("shards", "fiftyone")  # formats that write a folder
WITH_CAPTIONS = ("csv", "parquet", "shards", "fiftyone")
ENDINGS = {".txt": "keep-list", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet", ".npy": "uids"}


@dataclass(frozen=True)
class Counts:
    """Number of rows that an export wrote."""

    written: int
    total: int
    left_out: int  # selected, but impossible to write
    decided: int = 0  # rows with a decision of `srem review`
    without_caption: int = 0  # of them, those whose new caption a list of ids cannot hold
    #: Wrong pairs among those kept; None where that cannot be estimated, and where other pairs are written.
    left: Remaining | None = field(default=None, compare=False)


def export(
    folder: str | Path,
    out: str | Path,
    *,
    format: str | None = None,
    select: Select = "keep",
    cutoff: CutoffRule | None = None,
    split: str | None = None,
    formulas: bool = False,
) -> Counts:
    """Write the pairs to keep, which have a score and are not flagged as mismatches, or those to drop.

    Decisions of `srem review` override verdicts, and new captions replace the given ones. A list of ids holds no
    captions, so there pairs with a new caption are among those to drop.

    Args:
        folder: of a finished audit.
        format: one of `EXPORTS`; by default the file's ending decides, and other endings are a keep-list.
        select: the pairs to keep, the others, or all rows.
        cutoff: instead of the rule that the audit was made with.
        split: by default all.
        formulas: write CSV cells that a spreadsheet would compute, such as =1+1, as they are; by default they get an
            apostrophe in front.
    """
    format = format or ENDINGS.get(Path(out).suffix.lower(), "keep-list")
    if format not in EXPORTS:
        raise UserError(f"there is no export format '{format}'; choose from: {', '.join(EXPORTS)}")
    folder, out = Path(folder), Path(out)
    table = ResultTable(folder)
    _refuse_existing(out)
    if cutoff is not None and not cutoff.applies(read_summary(folder).get("noise_rate")):
        raise UserError(
            "the audit could not estimate the noise rate, so its scores only rank the pairs and promise no "
            "precision; use --fraction or --threshold (fraction=, threshold= in Python)"
        )
    selection = Selection(
        table, select, cutoff, split, decisions=read_decisions(folder), has_captions=format in WITH_CAPTIONS
    )
    selection.formulas = formulas
    if selection.count == 0:
        raise DataError(f"there is nothing to write: there is no pair{'' if select == 'all' else f' to {select}'}")
    out.parent.mkdir(parents=True, exist_ok=True)
    left = _left_in(folder, selection) if select == "keep" and split is None else None
    selection.filtered = None if select != "keep" else filter_facts(len(table), selection.count, left)
    refusal = f"another process is writing {out}; wait for it, or name another file"
    with sole_writer(out.with_name(f".{out.name}.lock"), refusal):
        _refuse_existing(out)
        remove_partials_of(out)
        write = atomic_write_folder if format in FOLDERS else atomic_write
        write(out, partial(EXPORTS[format], selection))
        if selection.filtered is not None:
            write_filter_facts(out, selection.filtered)
    written = selection.count - selection.left_out
    return Counts(written, len(table), selection.left_out, selection.decided, selection.without_caption, left)


def _left_in(folder: Path, rows: Selection) -> Remaining | None:
    """How many wrong pairs are among those that the selection keeps."""
    summary = read_summary(folder)
    if summary.get("noise_rate") is None or rows.usable == 0:
        return None
    near = summary.get("near_mismatches")
    return remaining(
        NoiseRate(**summary["noise_rate"]),
        None if near is None else NearMismatches(**near),
        total=rows.usable,
        flagged=rows.dropped,
        expected_wrong=rows.dropped_wrong,
        share_before=share_left_before(summary.get("filtered_before")),
    )


def _refuse_existing(out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists already; name another file, or remove it first")


def export_table(table: pa.Table, out: Path) -> None:
    """Write every row of a table in memory: CSV as `export` does, or Parquet with all columns."""
    if ENDINGS[out.suffix.lower()] == "parquet":
        write_table(table, out)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "pairs.parquet"
        write_table(table, stored)
        atomic_write(out, partial(write_csv, Selection(ResultTable(stored), "all")))
