"""The paper's ablation: filtration, weighting, complementary learning and rectification are added one after another.

SREM's warm-up is complementary learning. Rows without it warm up with the ranking loss over all pairs for as many
epochs, so that every row sees the data equally often. Where that does not train, as with hardest negatives on frozen
features, `--set method.complementary_warmup=true` gives all rows the same warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from sremkit.bench.methods import SHOWN
from sremkit.bench.published import read_published
from sremkit.bench.tables import Table, grouped, mean_and_deviation
from sremkit.config.recipes import Recipe, load_recipe

PARTS = ("filtration", "weighting", "complementary", "rectification")


def ablation_cells(
    recipe: str, rates: Sequence[float], seeds: Sequence[int], *, overrides: Sequence[str] = ()
) -> list[tuple[dict[str, Any], Recipe]]:
    """Five cells for each noise rate and seed; each has one part more than the cell before."""
    cells = []
    for rate, switched_on, seed in product(rates, range(len(PARTS) + 1), seeds):
        switches = {part: k < switched_on for k, part in enumerate(PARTS)}
        settings = [f"noise.rate={rate}", f"noise.seed={seed}", f"training.seed={seed}"]
        settings += [f"method.{part}={str(on).lower()}" for part, on in switches.items()]
        settings.append("training.adaptive_warmup=false")  # all rows warm up equally
        labels = {"recipe": recipe, "rate": rate, "seed": seed, **switches}
        cells.append((labels, load_recipe(recipe, [*settings, *overrides])))
    return cells


def ablation_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Mean ± standard deviation over seeds, and the paper's table."""
    shown = {key: SHOWN[key] for key in ("test_rsum", "test_i2t/R@1", "test_t2i/R@1", "train_auroc")}
    table = Table(f"ablation, {rows[0]['recipe']}", ["noise", *PARTS, "seeds", *shown.values()], labels=5)
    for (rate,), of_rate in grouped(rows, "rate").items():
        lines = []
        for switches, members in grouped(of_rate, *PARTS).items():
            cells = [mean_and_deviation([m[key] for m in members if m.get(key) is not None], key) for key in shown]
            lines.append([f"{rate:g}", *("✓" if on else "" for on in switches), str(len(members)), *cells])
        table.add_section(f"{rate:.0%} noise", lines)
    lines = []
    published = read_published("published_ablation.csv")
    for row in published:
        recalls = [float(row[f"{direction}/R@{k}"]) for direction in ("i2t", "t2i") for k in (1, 5, 10)]
        marks = ["✓" if row[part] == "1" else "" for part in PARTS]
        lines.append(["real", *marks, "1", f"{sum(recalls):.1f}", row["i2t/R@1"], row["t2i/R@1"], "-"])
    table.add_section(f"published: {published[0]['source']}, {published[0]['data']}", lines)
    return table
