"""The paper's ablation: nothing, filtration, weighting, complementary learning, rectification, one after another.

Without complementary learning there is no warm-up of SREM's kind; those rows start with as many epochs of the ranking
loss over all pairs instead, so that every row sees the data equally often. Where that does not train, as with hardest
negatives on frozen features, `--set method.complementary_warmup=true` gives all rows the same start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sremkit.bench.methods import SHOWN, mean_and_deviation
from sremkit.bench.published import published_ablation
from sremkit.bench.tables import Table
from sremkit.recipes import Recipe, load_recipe

PARTS = ("filtration", "weighting", "complementary", "rectification")


def ablation_cells(
    recipe: str, rates: Sequence[float], seeds: Sequence[int], *, overrides: Sequence[str] = ()
) -> list[tuple[dict[str, Any], Recipe]]:
    """Five rows for each noise rate and seed: each has one part more than the row before."""
    cells = []
    for rate in rates:
        for switched_on in range(len(PARTS) + 1):
            switches = {part: k < switched_on for k, part in enumerate(PARTS)}
            for seed in seeds:
                settings = [f"noise.rate={rate}", f"noise.seed={seed}", f"training.seed={seed}"]
                settings += [f"method.{part}={str(on).lower()}" for part, on in switches.items()]
                labels = {"recipe": recipe, "rate": rate, "seed": seed, **switches}
                cells.append((labels, load_recipe(recipe, [*settings, *overrides])))
    return cells


def ablation_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Mean ± deviation over seeds, with the paper's own table below."""
    shown = {key: SHOWN[key] for key in ("test_rsum", "test_i2t/R@1", "test_t2i/R@1", "train_auroc")}
    table = Table(f"ablation, {rows[0]['recipe']}", ["noise", *PARTS, "seeds", *shown.values()], labels=5)
    for rate in dict.fromkeys(row["rate"] for row in rows):
        groups: dict[tuple[bool, ...], list[dict[str, Any]]] = {}
        for row in rows:
            if row["rate"] == rate:
                groups.setdefault(tuple(row[part] for part in PARTS), []).append(row)
        lines = []
        for switches, members in groups.items():
            cells = [
                mean_and_deviation([m[key] for m in members if m.get(key) is not None], key) for key in shown
            ]
            lines.append([f"{rate:g}", *("✓" if on else "" for on in switches), str(len(members)), *cells])
        table.add_section(f"{rate:.0%} noise", lines)
    lines = []
    for row in published_ablation():
        recalls = [float(row[f"{direction}/R@{k}"]) for direction in ("i2t", "t2i") for k in (1, 5, 10)]
        marks = ["✓" if row[part] == "1" else "" for part in PARTS]
        lines.append(["real", *marks, "1", f"{sum(recalls):.1f}", row["i2t/R@1"], row["t2i/R@1"], "-"])
    table.add_section(
        f"published: {published_ablation()[0]['source']}, {published_ablation()[0]['data']}", lines
    )
    return table
