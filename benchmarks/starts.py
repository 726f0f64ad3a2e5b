"""Ways to start SREM: losses of the warm-up that do not rely on single pairs, under one protocol.

    srem data make --like f30k --images 2000 --regions 12 --dim 128 --concepts 300 -o data/small
    python -m benchmarks.starts --source data/small --noise 0,0.4,0.6 -o runs/starts.csv
    python -m benchmarks.starts --noise 0,0.4,0.6 -o runs/starts-scenes.csv       # without a source: generated scenes

Every run has the same epochs, initial weights and mismatches; the warm-up ends when the method is ready
(`training.adaptive_warmup`). Shown are the validation R_sum of the first epochs, that of the first epoch after the
warm-up as a share of the one before, and the best and the last one.
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from benchmarks.commands import make_parser, run_command
from sremkit.bench.grid import run_grid, write_csv
from sremkit.bench.tables import Table, grouped
from sremkit.cli.bench import parse_rates
from sremkit.config.recipes import Recipe, load_recipe
from sremkit.data.batch import Batch
from sremkit.methods import METHODS, Forward
from sremkit.methods.srem import SREMMethod
from sremkit.objectives import Terms

NAME = "srem-start"
SMALL_MODEL = ("model.name=vse-infty", "model.embed_size=128", "model.word_dim=64")
SMALL_TRAINING = (
    "training.learning_rate=1e-3",
    "training.workers=0",
    "training.threads=1",
    "training.device=cpu",
    "training.bucket_by_length=false",
)
#: Options of the method by the name of the start; None is InfoNCE, which takes every pair as correct.
STARTS: dict[str, dict[str, Any] | None] = {
    "complementary": {},
    "scaled": {"start_scale": 127.0},
    "tempered-2": {"start_temperature": 0.5},
    "tempered-4": {"start_temperature": 0.25},
    "gce-0.5": {"warmup_power": 0.5},
    "gce-0.7": {"warmup_power": 0.7},
    "gce-0.7-then-complementary": {"warmup_power": 0.7, "power_epochs": 2},
    "infonce": None,
}


@METHODS.register(NAME)
class SREMStart(SREMMethod):
    """SREM with another warm-up, for `python -m benchmarks.starts`.

    Args:
        start_scale: factor of the complementary loss in the warm-up.
        start_temperature: the complementary loss of the warm-up is that of the logits divided by this temperature.
        power_epochs: with `warmup_power`, so many epochs by generalised cross-entropy and the rest of the warm-up by
            the complementary loss; all of them when absent.
        options: as for `srem`.
    """

    selects_pairs: ClassVar[bool] = True

    def __init__(
        self,
        *,
        start_scale: float = 1.0,
        start_temperature: float = 1.0,
        power_epochs: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.start_scale = start_scale
        self.start_temperature = start_temperature
        self.power_epochs = power_epochs
        self._epoch = 0

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        super().begin_epoch(epoch, warmup=warmup)
        self._epoch = epoch

    def graph_key(self) -> Hashable:
        return super().graph_key(), self._has_ended()

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Terms:
        if not warmup:
            return super().loss(forward, batch, warmup=False)

        def tempered(batch: Batch) -> Tensor:
            return forward(batch) / self.start_temperature

        power = self.objective.warmup_power
        if power is not None and self._has_ended():
            logits = forward(batch)
            image_ids = batch.image_id if self.mask_repeated_images else None
            self.objective.warmup_power = None
            # The level stays that of the epochs before: neither loss changes it on purpose.
            terms = self.objective(logits - self.objective.level, warmup=True, image_ids=image_ids)
            self.objective.warmup_power = power
            self.monitor.update(terms)
        else:
            terms = super().loss(tempered, batch, warmup=True)
        return replace(terms, total=self.start_scale * terms.total)

    def _has_ended(self) -> bool:
        """Whether the epochs of generalized cross-entropy are over."""
        return self.power_epochs is not None and self._epoch >= self.power_epochs


def start_cells(
    source: str | None, starts: Sequence[str], rates: Sequence[float], seeds: Sequence[int], overrides: Sequence[str]
) -> list[tuple[dict[str, Any], Recipe]]:
    """Every start for each noise rate and seed."""
    cells = []
    for rate in rates:
        for seed in seeds:
            for name in starts:
                options = STARTS[name]
                settings = [f"noise.rate={rate}", f"noise.seed={seed}", f"training.seed={seed}"]
                if source is None:
                    recipe = load_recipe("scenes-srem", [*settings, *overrides])
                else:
                    data = (f"data.source={source}", "data.min_count=1")
                    recipe = load_recipe("f30k-sgr-srem", [*data, *settings, *SMALL_MODEL, *SMALL_TRAINING, *overrides])
                method = {"name": "infonce"} if options is None else {**recipe.method, **options, "name": NAME}
                labels = {"source": source or "scenes", "start": name, "rate": rate, "seed": seed}
                cells.append((labels, replace(recipe, method=method)))
    return cells


def start_facts(history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the history of a run shows about its start; the change is the first one from warm-up to SREM."""
    rsum = [row["val/rsum"] for row in history]
    warmup = [bool(row.get("warmup")) for row in history]
    change = next((k for k in range(1, len(rsum)) if warmup[k - 1] and not warmup[k]), None)
    falls = [after / before for before, after in pairwise(rsum) if before > 0]
    return {
        "first_epochs": " ".join(f"{value:.0f}" for value in rsum[:4]),
        "change": change,
        "kept": None if change is None else rsum[change] / rsum[change - 1],
        "worst_step": min(falls, default=None),
        "best": max(rsum),
        "last": rsum[-1],
    }


def starts_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A section for each noise rate."""
    columns = ["start", "seed", "epochs 1 to 4", "warm-up epochs", "kept after it", "best", "last", "selected wrong"]
    table = Table(f"starts, {rows[0]['source']}", columns, labels=2)
    for (rate,), of_rate in grouped(rows, "rate").items():
        lines = []
        for row in of_rate:
            facts, wrong = start_facts(row["history"]), row.get("selected_wrong")
            lines.append([
                row["start"], str(row["seed"]), facts["first_epochs"],
                "-" if facts["change"] is None else str(facts["change"]),
                "-" if facts["kept"] is None else f"{facts['kept']:.3f}",
                f"{facts['best']:.1f}", f"{facts['last']:.1f}", "-" if wrong is None else f"{wrong:.3f}",
            ])  # fmt: skip
        table.add_section(f"{rate:.0%} noise", lines)
    return table


def _report(row: dict[str, Any]) -> None:
    rsum = " ".join(f"{epoch['val/rsum']:.0f}{'' if epoch.get('warmup') else '*'}" for epoch in row["history"])
    print(f"{row['rate']:g} {row['start']} {row['seed']}: {rsum} ({row['seconds']:.0f} s)", flush=True)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("starts", __doc__)
    parser.add_argument("--source", help="a collection in the precomputed layout (default: generated scenes)")
    parser.add_argument("--noise", default="0.4", help="comma-separated noise rates")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--starts", nargs="+", choices=list(STARTS), default=list(STARTS), help="which to compare")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="change all recipes"
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/starts.csv"), help="CSV file to write")
    return parser


def run(args: argparse.Namespace) -> None:
    cells = start_cells(args.source, args.starts, parse_rates(args.noise), range(args.seeds), args.overrides)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows = run_grid(cells, args.out.with_suffix(".cells"), on_row=_report)
    write_csv([{**row, **start_facts(row["history"])} for row in rows], args.out)
    print(f"\n{starts_table(rows).as_text()}\n\nwritten to {args.out}")


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(build_parser(), run, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
