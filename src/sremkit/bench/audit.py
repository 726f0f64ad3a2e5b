"""The audit against other detectors of wrong pairs: collections, kinds of wrong captions, rates, sizes, seeds.

A cell is one detector on one noisy collection. It runs in a subprocess, so that its peak memory is its own, and its row
is kept when it is finished. The truth is joined after scoring, except for the labels that `lemon-tuned` is given.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sremkit.audit.embed import read_vectors, score_pairs
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.scoring.types import ScoringSettings
from sremkit.bench.audit_collections import COLLECTIONS, GIVEN, NoisyPairs, draw_pairs, read_labelled
from sremkit.bench.figures import TEN_COLORS, save_figure
from sremkit.bench.grid import read_row, row_file, run_in_subprocess
from sremkit.bench.rivals import UNSUPERVISED, Detection, lemon_tuned
from sremkit.bench.tables import Table, grouped
from sremkit.bench.wrong_captions import KINDS
from sremkit.errors import UserError
from sremkit.evaluation import detection_metrics
from sremkit.experiment import peak_memory_mb
from sremkit.io import atomic_write, digest
from sremkit.reports.figures import new_axes

DETECTORS = (*UNSUPERVISED, "lemon-tuned", "audit")
COLUMNS = ("wrong captions", "rate", "detector", "AUROC", "average precision", "best recall", "precision", "recall",
           "estimated rate", "interval holds", "seconds", "MB")  # fmt: skip


@dataclass(frozen=True)
class AuditCell:
    """One detector on one noisy collection."""

    data: str  # one of COLLECTIONS, or a file
    kind: str
    rate: float
    size: int | None  # None: all pairs of a file
    seed: int
    detector: str
    precision: float = 0.95  # that the detectors with a cutoff are asked for
    truth: str | None = None  # column of a file that says which pairs are wrong
    options: tuple[tuple[str, str], ...] = ()  # how a file is read

    @property
    def key(self) -> str:
        return digest(asdict(self))


def audit_cells(
    data: Sequence[str],
    detectors: Sequence[str],
    kinds: Sequence[str],
    rates: Sequence[float],
    sizes: Sequence[int],
    seeds: Iterable[int],
    *,
    precision: float = 0.95,
    truth: str | None = None,
    options: dict[str, str] | None = None,
) -> list[AuditCell]:
    """Every combination; a file has neither kinds nor rates."""
    if wrong := [kind for kind in kinds if kind not in KINDS]:
        raise UserError(f"the kinds of wrong captions are {', '.join(KINDS)}; got '{wrong[0]}'")
    unknown = [name for name in detectors if name not in DETECTORS]
    if unknown:
        raise UserError(f"'{unknown[0]}' is no detector of the bench; they are {', '.join(DETECTORS)}")
    cells = []
    for name in data:
        is_file = name not in COLLECTIONS
        if is_file and truth is None:
            raise UserError(
                f"'{name}' is none of {', '.join(COLLECTIONS)}; of a file, --truth names the column that says which "
                "pairs are wrong"
            )
        noises = [(GIVEN, 0.0)] if is_file else [(kind, rate) for kind in kinds for rate in rates]
        reading = (truth, tuple(sorted((options or {}).items()))) if is_file else (None, ())
        chosen: list[int | None] = [*sizes] or [None if is_file else 6000]
        cells += [
            AuditCell(name, kind, rate, size, seed, detector, precision, *reading)
            for size in chosen
            for kind, rate in noises
            for seed in seeds
            for detector in detectors
        ]
    return cells


def run_audit_bench(
    cells: Sequence[AuditCell],
    folder: Path,
    *,
    jobs: int = 1,
    again: Collection[str] = (),
    subprocesses: bool = True,
    on_row: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """Run every cell that has no row yet; return all rows in the order of the cells.

    Args:
        folder: holds a JSON file per finished cell, and features of files.
        again: detectors whose finished cells are run again, after a change of their code.
        subprocesses: False runs the cells in this process, whose peak memory is then that of all cells so far.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells if cell.detector in again or not row_file(folder, cell.key).exists()]

    def run(cell: AuditCell) -> dict[str, Any]:
        return run_in_subprocess(run_cell, cell, folder) if subprocesses else run_cell(cell, folder)

    with ThreadPoolExecutor(jobs) as pool:  # threads that wait for a subprocess each
        futures = [pool.submit(run, cell) for cell in missing]
        try:
            for future in as_completed(futures):
                row = future.result()
                atomic_write(row_file(folder, row["key"]), json.dumps(row))
                on_row(row)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [read_row(folder, cell.key) for cell in cells]


def run_cell(cell: AuditCell, folder: Path) -> dict[str, Any]:
    """Draw the pairs, run the detector, and measure it against the truth."""
    noisy = _read(cell, folder)
    started, worked = time.monotonic(), time.process_time()
    found = detect(cell.detector, noisy, seed=cell.seed, precision=cell.precision)
    seconds, cpu_seconds = time.monotonic() - started, time.process_time() - worked
    return {
        "key": cell.key,
        **{name: value for name, value in asdict(cell).items() if name != "options"},
        "pairs": len(noisy.pairs),
        **measure(found, noisy.is_wrong, cell.precision),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_memory_mb": peak_memory_mb(torch.device("cpu")),  # of the whole process
    }


def detect(detector: str, noisy: NoisyPairs, *, seed: int, precision: float) -> Detection:
    """Scores of all pairs by a detector; with a cutoff and a noise rate where it has them."""
    if detector == "audit":
        scores = score_pairs(noisy.pairs, ScoringSettings(seed=seed))
        rate = scores.noise_rate
        return Detection(
            np.asarray(scores.match_prob, dtype=np.float64),
            flagged=scores.flag(CutoffRule(precision=precision)),
            rate=None if rate is None else (rate.estimate, rate.low, rate.high),
        )
    vectors = read_vectors(noisy.pairs)
    if detector == "lemon-tuned":
        return lemon_tuned(vectors, seed=seed, is_wrong=noisy.is_wrong, precision=precision)
    return Detection(UNSUPERVISED[detector](vectors, seed=seed))


def measure(found: Detection, is_wrong: np.ndarray, precision: float) -> dict[str, float | int | bool | None]:
    """Ranking, cutoff and noise rate against the truth; None for what a detector does not have.

    Returns:
        "best_recall" is that of the cutoff which the truth would choose for the asked precision: an upper bound for
        detectors without a cutoff. "rate_holds" is whether the true rate lies in the interval.
    """
    chosen = np.ones(len(is_wrong), dtype=bool) if found.measured is None else found.measured
    truth, score = is_wrong[chosen], found.score[chosen]
    flagged = None if found.flagged is None else found.flagged[chosen]
    metrics = detection_metrics(truth, score, verdict=flagged)
    row: dict[str, float | int | bool | None] = {
        "true_rate": float(is_wrong.mean()),
        "labels": int((~chosen).sum()),
        "auroc": metrics["auroc"],
        "average_precision": metrics["average_precision"],
        "best_recall": best_recall(truth, score, precision),
        "flagged": None if flagged is None else int(flagged.sum()),
        "flagged_precision": None if flagged is None else metrics["precision"],
        "flagged_recall": None if flagged is None else metrics["recall"],
    }
    estimate, low, high = (None, None, None) if found.rate is None else found.rate
    holds = None if low is None or high is None else bool(low <= row["true_rate"] <= high)  # type: ignore[operator]
    return row | {"estimated_rate": estimate, "rate_low": low, "rate_high": high, "rate_holds": holds}


def best_recall(is_wrong: np.ndarray, score: np.ndarray, precision: float) -> float:
    """The largest recall of flagging the lowest scores with at least this true precision; 0 where none has it."""
    distinct, group = np.unique(score, return_inverse=True)
    flagged = np.cumsum(np.bincount(group, minlength=len(distinct)))
    found = np.cumsum(np.bincount(group[is_wrong], minlength=len(distinct)))
    reached = found / flagged >= precision
    return float(found[reached].max() / is_wrong.sum()) if reached.any() and is_wrong.any() else 0.0


def audit_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Means over the seeds: a section for each collection and size, a line for each noise and detector."""
    seeds = len({row["seed"] for row in rows})
    precision = rows[0]["precision"]
    over = "1 seed" if seeds == 1 else f"means over up to {seeds} seeds"
    table = Table(f"Detection of wrong pairs, {over}", COLUMNS, labels=3)
    for place, of_place in grouped(rows, "data", "size").items():
        lines = []
        for noise, of_noise in grouped(of_place, "kind", "rate").items():
            for (detector,), of_detector in grouped(of_noise, "detector").items():
                lines.append([noise[0], f"{_mean(of_detector, 'true_rate'):.1%}", detector, *_line(of_detector)])
        data, size = place
        table.add_section(f"{data}, {size or of_place[0]['pairs']:,} pairs", lines)
    table.notes += [
        f"Precision and recall: of the pairs that are flagged when a precision of {precision:g} is asked for. Best "
        f"recall: with the cutoff that the truth would choose for {precision:g}. lemon-tuned is given the labels of a "
        "fifth of the pairs, and measured on the others. MB: peak of the process, with the whole collection in memory."
    ]
    return table


def draw_audit_figure(rows: Sequence[dict[str, Any]], stem: Path) -> list[Path]:
    """AUROC of each detector by kind of wrong captions, a panel for each collection, size and rate."""
    panels = grouped(rows, "data", "size", "rate")
    detectors = list(dict.fromkeys(row["detector"] for row in rows))
    figure, axes = new_axes(1, len(panels), width=1.6 + 3.6 * len(panels), height=3.8)
    for axis, ((data, size, rate), of_panel) in zip(axes, panels.items(), strict=True):
        kinds = list(dict.fromkeys(row["kind"] for row in of_panel))
        for number, detector in enumerate(detectors):
            points = [
                (kinds.index(kind) + (number - (len(detectors) - 1) / 2) * 0.08, row["auroc"])
                for (kind, name), of_kind in grouped(of_panel, "kind", "detector").items()
                if name == detector
                for row in of_kind
            ]
            if points:
                x, y = zip(*points, strict=True)
                marker = "D" if detector == "audit" else "o"
                axis.plot(x, y, marker, color=TEN_COLORS[number], markersize=5, label=detector)
        axis.set_xticks(range(len(kinds)), kinds)
        axis.set_xlim(-0.5, len(kinds) - 0.5)
        axis.set_ylim(min(0.5, min(row["auroc"] for row in of_panel) - 0.02), 1)
        axis.set_ylabel("AUROC")
        pairs = size or of_panel[0]["pairs"]
        noise = "" if of_panel[0]["kind"] == GIVEN else f", {rate:.0%}"
        axis.set_title(f"{Path(data).name}, {pairs:,} pairs{noise}", loc="left", fontsize=10)
        axis.grid(axis="y", alpha=0.25)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=4, fontsize=9)
    return save_figure(figure, stem)


def _read(cell: AuditCell, folder: Path) -> NoisyPairs:
    if cell.truth is not None:
        features = folder / "features"
        return read_labelled(
            cell.data, cell.truth, folder=features, size=cell.size, seed=cell.seed, **dict(cell.options)
        )
    assert cell.size is not None
    return draw_pairs(cell.data, kind=cell.kind, rate=cell.rate, size=cell.size, seed=cell.seed, folder=folder)


def _line(rows: Sequence[dict[str, Any]]) -> list[str]:
    holds = [row["rate_holds"] for row in rows if row["rate_holds"] is not None]
    spread = f" ± {np.std([row['auroc'] for row in rows], ddof=1):.3f}" if len(rows) > 1 else ""
    return [
        f"{_mean(rows, 'auroc'):.3f}{spread}",
        *(_number(_mean(rows, name), ".3f") for name in ("average_precision", "best_recall")),
        *(_number(_mean(rows, name), ".3f") for name in ("flagged_precision", "flagged_recall")),
        _number(_mean(rows, "estimated_rate"), ".1%"),
        f"{sum(holds)} of {len(holds)}" if holds else "–",
        _number(_mean(rows, "seconds"), ".0f"),
        _number(_mean(rows, "peak_memory_mb"), ".0f"),
    ]


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float:
    values = [row[name] for row in rows if row[name] is not None and np.isfinite(row[name])]
    return float(np.mean(values)) if values else float("nan")


def _number(value: float, style: str) -> str:
    return format(value, style) if np.isfinite(value) else "–"
