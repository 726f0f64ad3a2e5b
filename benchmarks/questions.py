"""Choices that the paper leaves open in SREM's recipe: one change at a time, under one protocol.

    python -m benchmarks.questions --data flickr8k --backbone dual --noise 0.4,0.6 --seeds 3
    python -m benchmarks.questions --only threshold,clean-set

Each answer is the recipe with one change, at the same seeds, so with the same mismatches and initial weights. A
change that the recipe can express is a setting of it; the others are options of `SREMVariant`. The answer `formulas`
changes only the implementation, and so the rounding: it shows the deviation of a run that rounding alone causes, one
draw per seed, which is not small, because the filter is a hard decision. Choices belong to the validation split; the
test split is scored once per cell, with the model that was best on the validation split. That may be one of the
warm-up, so the last epoch is shown as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.commands import make_parser, run_command
from benchmarks.variants import VariantRecipe
from sremkit.bench.grid import run_grid, write_csv
from sremkit.bench.methods import default_rates, split_data
from sremkit.bench.tables import Table, grouped, mean_and_deviation
from sremkit.cli.bench import add_grid_arguments, parse_rates, show_table
from sremkit.config.recipes import Recipe, load_recipe
from sremkit.config.settings import suggestion
from sremkit.errors import UnknownNameError, UserError
from sremkit.objectives import SREM

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
NO_THRESHOLD = 1e9  # above every energy: the argmax rule decides alone


class Answer(NamedTuple):
    """One change of the recipe."""

    question: str
    name: str
    meaning: str
    options: Options | Callable[[Recipe], Options]  # of the method, or a function of the recipe
    by_variant: bool = False  # not an option of the recipe's method

    def applied_to(self, recipe: Recipe) -> Recipe:
        options = self.options(recipe) if callable(self.options) else self.options
        if self.by_variant:
            return VariantRecipe.of(recipe, **options)
        return replace(recipe, method={**recipe.method, **options})


def mean_over_negatives(recipe: Recipe) -> Options:
    """The complementary loss is a sum over b - 1 negatives; its mean is the same loss with a smaller weight.

    This holds for full batches without repeated images. The warm-up stays a sum.
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
    Answer("threshold", "median", "median of the batch", {"threshold_from": "median", "threshold": 0.0}, True),
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
    """The answers with these names or questions, and the recipe to compare with; all without names."""
    known = {answer.name for answer in ANSWERS} | {answer.question for answer in ANSWERS}
    for name in names:
        if name not in known:
            raise UnknownNameError(f"there is no question or answer called '{name}'; {suggestion(name, known)}")
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
                base = load_recipe(recipe, [*settings, "training.adaptive_warmup=false", *overrides])
                _check_warmup(base)
                cells.append((labels, answer.applied_to(base)))
    return cells


def add_gains(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the difference in validation R_sum to the recipe at the same noise and seed."""
    recipe = {(row["rate"], row["seed"]): row["val_rsum"] for row in rows if row["answer"] == RECIPE.name}
    return [{**row, "gain_rsum": row["val_rsum"] - recipe[row["rate"], row["seed"]]} for row in rows]


def questions_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Mean ± standard deviation over seeds; differences are paired by seed."""
    columns = ["question", "answer", "meaning", "seeds", *SHOWN.values()]
    table = Table(f"open questions, {rows[0]['recipe']}", columns, labels=3)
    for (rate,), of_rate in grouped(rows, "rate").items():
        lines = []
        for (name,), members in grouped(of_rate, "answer").items():
            first = members[0]
            cells = [_cell(members, key) for key in SHOWN]
            if name == RECIPE.name:
                cells[list(SHOWN).index("gain_rsum")] = "-"
            lines.append([first["question"], name, first["meaning"], str(len(members)), *cells])
        table.add_section(f"{rate:.0%} noise", lines)
    return table


def run_questions(cells: Sequence[tuple[dict[str, Any], Recipe]], out: Path, *, jobs: int = 1) -> list[dict[str, Any]]:
    """Run the cells and write `out` as CSV; finished cells are kept in a folder next to it."""
    rows = run_grid(cells, out.with_suffix(".cells"), jobs=jobs, on_row=_report)
    rows = add_gains(rows)
    write_csv(rows, out)
    return rows


def _check_warmup(recipe: Recipe) -> None:
    if recipe.training.adaptive_warmup:
        raise UserError(
            "training.adaptive_warmup is on, but only some of the answers can extend their warm-up; leave it "
            "out and set training.warmup_epochs, so that all warm up equally"
        )


def _cell(members: Sequence[dict[str, Any]], key: str) -> str:
    values = [member[key] for member in members if member.get(key) is not None]
    text = mean_and_deviation(values, key)
    return f"+{text}" if key == "gain_rsum" and not text.startswith("-") else text


def _report(row: dict[str, Any]) -> None:
    print(
        f"{row['rate']:g} {row['answer']} {row['seed']}: val {row['val_rsum']:.1f} "
        f"(last {row['last_val_rsum']:.1f}), {row['seconds']:.0f} s",
        flush=True,
    )


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("questions", __doc__)
    parser.add_argument("--data", default="flickr8k", help="first part of the recipe's name, or NAME:PATH")
    parser.add_argument("--backbone", default="dual", help="second part of the recipe's name")
    parser.add_argument("--recipe", help="name or file (default: DATA-BACKBONE-srem)")
    parser.add_argument(
        "--noise", help="comma-separated rates to add (default: 0.4,0.6; for cc152k, which has real noise, 0)"
    )
    parser.add_argument("--only", default="", help="comma-separated questions or answers (default: all)")
    add_grid_arguments(parser, out="runs/bench-questions.csv")
    return parser


def run(args: argparse.Namespace) -> None:
    data, source = split_data(args.data)
    recipe = args.recipe or f"{data}-{args.backbone}-srem"
    answers = choose([name for name in args.only.split(",") if name])
    rates = default_rates(args.data, (0.4, 0.6)) if args.noise is None else parse_rates(args.noise)
    overrides = [*source, *args.overrides]
    cells = question_cells(recipe, answers, rates, range(args.seeds), overrides=overrides)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    show_table(questions_table(run_questions(cells, args.out, jobs=args.jobs)), args)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(build_parser(), run, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
