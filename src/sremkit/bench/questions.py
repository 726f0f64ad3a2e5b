"""What the paper leaves open in SREM's recipe: one change at a time, under one protocol.

    srem bench questions --data flickr8k --backbone dual --noise 0.4,0.6 --seeds 3
    srem bench questions --only threshold,clean-set

Each answer is the recipe with one thing changed, at the same seeds, so at the same wrong pairs and the same first
weights. What the recipe can express is a setting of it; the rest is `SREMVariant`. The answer `formulas` changes
nothing but how the recipe is computed, and so how it is rounded: it shows how far rounding alone carries a run, a
draw a seed. The filter decides by yes or no, so that is not little. Choices belong to the validation split; the
test split is looked at once a cell, with the best model of the validation. That may be one of the warm-up, and
the last epoch stands beside it to show what came after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sremkit.bench.grid import run_grid, write_csv
from sremkit.bench.methods import mean_and_deviation
from sremkit.bench.tables import Table
from sremkit.bench.variants import VariantRecipe
from sremkit.errors import UnknownNameError, UserError
from sremkit.objectives import SREM
from sremkit.recipes import Recipe, load_recipe
from sremkit.settings import suggestion

Options = dict[str, Any]
SHOWN = {
    "val_rsum": "validation R_sum",
    "gain_rsum": "against recipe",
    "last_val_rsum": "last epoch",
    "test_rsum": "test R_sum",
    "train_auroc": "AUROC",
    "noisy_gradient_ratio": "noisy gradients",
    "selected": "selected",
}
NO_THRESHOLD = 1e9  # above every energy, so that the argmax rule alone decides


class Answer(NamedTuple):
    """One change of the recipe."""

    question: str
    name: str
    meaning: str
    options: Options | Callable[[Recipe], Options]  # of the method, or how they follow from the recipe
    by_variant: bool = False  # the recipe's own options cannot express it

    def applied_to(self, recipe: Recipe) -> Recipe:
        options = self.options(recipe) if callable(self.options) else self.options
        if self.by_variant:
            return VariantRecipe.of(recipe, **options)
        return replace(recipe, method={**recipe.method, **options})


def mean_over_negatives(recipe: Recipe) -> Options:
    """The complementary loss is a sum over b - 1 negatives; its mean is the same loss with a smaller weight.

    For full batches: the last one of an epoch can be smaller, and repeated images are no negatives. The
    warm-up stays a sum.
    """
    weight = recipe.method.get("complementary_weight", SREM().complementary_weight)
    return {"complementary_weight": weight / (recipe.training.batch_size - 1)}


def _relative(distance: float) -> Options:
    return {"relative_margins": True, "clean_margin": -distance, "noisy_margin": distance}


def _below_equal(shift: float) -> Options:
    return {"threshold_from": "equal-logits", "threshold": shift}


def _ramped(weight: float) -> Options:
    return {"energy_ramp_epochs": 5, "energy_weight": weight}


RECIPE = Answer("recipe", "recipe", "as it is", {})
ANSWERS = (
    RECIPE,
    Answer("recipe", "formulas", "the same, from formulas and autograd", {}, True),
    Answer("margins", "relative-1", "∓1 around the batch's mean energy", _relative(1.0), True),
    Answer("margins", "relative-0.5", "∓0.5 around the batch's mean energy", _relative(0.5), True),
    Answer("threshold", "none", "no threshold", {"threshold": NO_THRESHOLD}),
    Answer("threshold", "equal-minus-2", "-log b - 2", _below_equal(-2.0), True),
    Answer("threshold", "equal", "-log b", _below_equal(0.0), True),
    Answer("threshold", "equal-plus-2", "-log b + 2", _below_equal(2.0), True),
    Answer(
        "threshold", "median", "median of the batch", {"threshold_from": "median", "threshold": 0.0}, True
    ),
    Answer("threshold", "mean", "mean of the batch", {"threshold_from": "mean", "threshold": 0.0}, True),
    Answer("energy-weight", "energy-0.1", "0.1", {"energy_weight": 0.1}),
    Answer("energy-weight", "ramp-0.01", "0 to 0.01 over 5 epochs", _ramped(0.01), True),
    Answer("energy-weight", "ramp-0.1", "0 to 0.1 over 5 epochs", _ramped(0.1), True),
    Answer("clean-set", "both", "both directions must agree", {"clean_set": "both"}, True),
    Answer("clean-set", "either", "either direction suffices", {"clean_set": "either"}, True),
    Answer("clean-set", "i2t", "image-to-text's for both", {"clean_set": "i2t"}, True),
    Answer("negatives", "negatives-mean", "mean, after the warm-up", mean_over_negatives),
    Answer("duplicates", "unmasked", "count as negatives", {"mask_repeated_images": False}),
    Answer("weights", "unweighted", "none", {"weighting": False}),
    Answer("weights", "unswapped", "of the own direction", {"weights": "own"}, True),
    Answer("sharpness", "sharpness-0", "0", {"sharpness": 0.0}),
    Answer("sharpness", "sharpness-3", "3", {"sharpness": 3.0}),
)


def choose(names: Sequence[str]) -> list[Answer]:
    """The answers of these questions or names, and always the recipe to compare them with; all without names."""
    known = {answer.name for answer in ANSWERS} | {answer.question for answer in ANSWERS}
    for name in names:
        if name not in known:
            raise UnknownNameError(
                f"there is no question or answer called '{name}'; {suggestion(name, known)}"
            )
    return [
        answer
        for answer in ANSWERS
        if not names or answer is RECIPE or answer.name in names or answer.question in names
    ]


def question_cells(
    recipe: str,
    answers: Sequence[Answer],
    rates: Sequence[float],
    seeds: Sequence[int],
    *,
    overrides: Sequence[str] = (),
) -> list[tuple[dict[str, Any], Recipe]]:
    """Every answer for each noise rate and seed; `overrides` change the recipe that the answers start from."""
    cells = []
    for rate in rates:
        for answer in answers:
            for seed in seeds:
                settings = [f"noise.rate={rate}", f"noise.seed={seed}", f"training.seed={seed}"]
                labels = {
                    "recipe": recipe,
                    "question": answer.question,
                    "answer": answer.name,
                    "meaning": answer.meaning,
                    "rate": rate,
                    "seed": seed,
                }
                base = load_recipe(recipe, [*settings, *overrides])
                _check_warmup(base)
                cells.append((labels, answer.applied_to(base)))
    return cells


def add_gains(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with what each gained in validation on the recipe at the same noise and seed."""
    recipe = {(row["rate"], row["seed"]): row["val_rsum"] for row in rows if row["answer"] == RECIPE.name}
    return [{**row, "gain_rsum": row["val_rsum"] - recipe[row["rate"], row["seed"]]} for row in rows]


def questions_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Mean ± deviation over seeds; the gain is taken seed by seed, which leaves out what a seed has of its own."""
    columns = ["question", "answer", "meaning", "seeds", *SHOWN.values()]
    table = Table(f"open questions, {rows[0]['recipe']}", columns, labels=3)
    for rate in dict.fromkeys(row["rate"] for row in rows):
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if row["rate"] == rate:
                groups.setdefault(row["answer"], []).append(row)
        lines = []
        for name, members in groups.items():
            first = members[0]
            cells = [_cell(members, key) for key in SHOWN]
            if name == RECIPE.name:
                cells[list(SHOWN).index("gain_rsum")] = "-"
            lines.append([first["question"], name, first["meaning"], str(len(members)), *cells])
        table.add_section(f"{rate:.0%} noise", lines)
    return table


def ask(
    cells: Sequence[tuple[dict[str, Any], Recipe]], out: Path, *, side_by_side: int = 1
) -> list[dict[str, Any]]:
    """Run the cells and write `out` as CSV; finished cells are kept beside it."""
    rows = run_grid(cells, out.with_suffix(".cells"), side_by_side=side_by_side, on_row=_tell)
    rows = add_gains(rows)
    write_csv(rows, out)
    return rows


def _check_warmup(recipe: Recipe) -> None:
    if recipe.training.adaptive_warmup:
        raise UserError(
            "training.adaptive_warmup is on, and only some of the answers could end their warm-up early; leave it "
            "out, and set training.warmup_epochs, so that all of them start alike"
        )


def _cell(members: Sequence[dict[str, Any]], key: str) -> str:
    values = [member[key] for member in members if member.get(key) is not None]
    text = mean_and_deviation(values, key)
    return f"+{text}" if key == "gain_rsum" and not text.startswith("-") else text


def _tell(row: dict[str, Any]) -> None:
    print(
        f"{row['rate']:g} {row['answer']} {row['seed']}: val {row['val_rsum']:.1f} "
        f"(last {row['last_val_rsum']:.1f}), {row['seconds']:.0f} s",
        flush=True,
    )
