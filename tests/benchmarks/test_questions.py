"""The open questions: each answer changes what it says, and the benchmark runs them and compares them."""

from __future__ import annotations

import csv
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from benchmarks import questions
from benchmarks.questions import ANSWERS, RECIPE, add_gains, choose, question_cells, questions_table
from benchmarks.variants import NAME, SREMVariant, VariantRecipe
from logit_cases import random_logits, repeated_ids
from small_recipes import TINY
from sremkit.config.recipes import Recipe, load_recipe
from sremkit.errors import UserError
from sremkit.methods import build_method
from variant_cases import SIZE, batch_of, loss_of


def recipe_of(answer: questions.Answer) -> Recipe:
    return answer.applied_to(load_recipe("flickr8k-dual-srem"))


def method_of(answer: questions.Answer) -> Any:
    return build_method(**recipe_of(answer).method)


@pytest.mark.parametrize("answer", [a for a in ANSWERS if a.by_variant], ids=lambda answer: answer.name)
@pytest.mark.parametrize("warmup", [False, True])
def test_a_step_of_a_variant_supports_cuda_graphs(answer: questions.Answer, warmup: bool) -> None:
    """These tensors have shapes and no numbers: whatever looks at one, or takes its shape from one, fails."""
    with FakeTensorMode():
        logits = torch.empty(SIZE, SIZE)
        batch = batch_of(torch.empty(SIZE, dtype=torch.int64))
        terms, gradient = loss_of(method_of(answer), logits, batch, warmup=warmup)
        with pytest.raises(DataDependentOutputException):  # so looking would have been noticed
            bool(terms.total > 0)
    assert gradient.shape == (SIZE, SIZE)
    assert SREMVariant.supports_cuda_graphs


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.name)
def test_every_answer_but_the_formulas_changes_the_loss(answer: questions.Answer) -> None:
    expected = {"recipe", "formulas"}
    method, recipe = method_of(answer), method_of(RECIPE)
    for each in (method, recipe):
        each.begin_epoch(5, warmup=False)  # in its first epoch after the warm-up a ramp is at 0
    batch = batch_of(repeated_ids(SIZE))
    changed = False
    for seed in range(6):
        logits = random_logits(SIZE, seed=seed) - seed  # energies on both sides of 0 and of -log b
        found, base = (loss_of(each, logits, batch)[0].total.item() for each in (method, recipe))
        changed |= found != pytest.approx(base, rel=1e-7)
    assert changed == (answer.name not in expected)


def test_names_of_answers_are_unique_and_settings_of_the_recipe_are_used_where_possible() -> None:
    assert len({answer.name for answer in ANSWERS}) == len(ANSWERS)
    for answer in ANSWERS:
        recipe = recipe_of(answer)
        assert recipe.method["name"] == (NAME if answer.by_variant else "srem")
        assert isinstance(recipe, VariantRecipe) == answer.by_variant
        assert recipe.method["complementary_weight"] == (
            pytest.approx(0.3 / 127) if answer.name == "negatives-mean" else 0.3
        )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("relative-1", {"relative_margins": True, "clean_margin": -1.0, "noisy_margin": 1.0}),
        ("relative-0.5", {"relative_margins": True, "clean_margin": -0.5, "noisy_margin": 0.5}),
        ("none", {"threshold": 1e9}),
        ("equal-minus-2", {"threshold_from": "equal-logits", "threshold": -2.0}),
        ("equal", {"threshold_from": "equal-logits", "threshold": 0.0}),
        ("equal-plus-2", {"threshold_from": "equal-logits", "threshold": 2.0}),
        ("median", {"threshold_from": "median", "threshold": 0.0}),
        ("mean", {"threshold_from": "mean", "threshold": 0.0}),
        ("energy-0.1", {"energy_weight": 0.1}),
        ("ramp-0.01", {"energy_ramp_epochs": 5, "energy_weight": 0.01}),
        ("ramp-0.1", {"energy_ramp_epochs": 5, "energy_weight": 0.1}),
        ("both", {"clean_set": "both"}),
        ("either", {"clean_set": "either"}),
        ("i2t", {"clean_set": "i2t"}),
        ("unmasked", {"mask_repeated_images": False}),
        ("unweighted", {"weighting": False}),
        ("unswapped", {"weights": "own"}),
        ("sharpness-0", {"sharpness": 0.0}),
        ("sharpness-3", {"sharpness": 3.0}),
    ],
)
def test_an_answer_changes_the_settings_of_its_name_and_nothing_else(name: str, settings: dict[str, Any]) -> None:
    _, answer = choose([name])
    method = recipe_of(answer).method
    assert method == {**load_recipe("flickr8k-dual-srem").method, "name": method["name"], **settings}


def test_unpickling_the_recipe_of_a_variant_registers_its_method() -> None:
    recipe = recipe_of(choose(["median"])[1])
    script = (
        "import pickle, sys; import sremkit.bench.grid; from sremkit.methods import METHODS\n"
        f"print('{NAME}' in METHODS)\n"
        "recipe = pickle.loads(sys.stdin.buffer.read())\n"
        f"print('{NAME}' in METHODS, recipe.method['threshold_from'])"
    )
    run = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(recipe), capture_output=True, check=False)
    assert run.stdout.decode().split() == ["False", "True", "median"], run.stderr.decode()[-1000:]


def test_the_recipe_is_always_among_the_chosen_and_unknown_names_are_refused() -> None:
    assert [a.name for a in choose(["clean-set"])] == ["recipe", "both", "either", "i2t"]
    assert [a.name for a in choose(["median"])] == ["recipe", "median"]
    assert choose([]) == list(ANSWERS)
    with pytest.raises(UserError, match="no question or answer called 'medain'; did you mean 'median'"):
        choose(["medain"])


def test_overrides_change_the_recipe_and_the_answer_comes_on_top() -> None:
    cells = question_cells(
        "flickr8k-dual-srem",
        choose(["energy-0.1", "negatives-mean"]),
        [0.6],
        [2],
        overrides=["method.energy_weight=0.5", "training.batch_size=11"],
    )
    methods = {labels["answer"]: recipe.method for labels, recipe in cells}
    assert methods["recipe"]["energy_weight"] == methods["negatives-mean"]["energy_weight"] == 0.5
    assert methods["energy-0.1"]["energy_weight"] == 0.1
    assert methods["negatives-mean"]["complementary_weight"] == pytest.approx(0.03)
    assert all(
        (r.noise.rate, r.noise.seed, r.training.seed, r.training.batch_size) == (0.6, 2, 2, 11) for _, r in cells
    )


def test_a_warm_up_of_unequal_length_is_refused() -> None:
    with pytest.raises(UserError, match=r"training\.adaptive_warmup"):
        question_cells("flickr8k-dual-srem", ANSWERS, [0.4], [0], overrides=["training.adaptive_warmup=true"])


def made_row(answer: str, seed: int, val: float) -> dict[str, Any]:
    labels = {"recipe": "r", "question": "q", "answer": answer, "meaning": "m", "rate": 0.4, "seed": seed}
    return {
        **labels,
        "val_rsum": val,
        "last_val_rsum": val - 9,
        "test_rsum": val + 1,
        "train_auroc": 0.9,
        "noisy_gradient_ratio": None,
    }


def test_gains_are_taken_seed_by_seed() -> None:
    # Seeds differ by 20, the answer by +3 and +1: mean 2, deviation sqrt(2), whatever the seeds do.
    rows = [made_row("recipe", 0, 280.0), made_row("recipe", 1, 300.0)]
    rows += [made_row("median", 1, 301.0), made_row("median", 0, 283.0)]
    table = questions_table(add_gains(rows))
    assert table.columns[4:6] == ["validation R_sum", "against recipe"]
    ((heading, (recipe, median)),) = table.sections
    assert heading == "40% noise"
    assert recipe[:6] == ["q", "recipe", "m", "2", "290.0 ± 14.1", "-"]
    assert median[3:7] == ["2", "292.0 ± 12.7", "+2.0 ± 1.4", "283.0 ± 12.7"]
    assert median[7:10] == ["293.0 ± 12.7", "0.900 ± 0.000", "-"]


def test_the_benchmark_runs_its_cells_and_writes_both_tables(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out, table = tmp_path / "questions.csv", tmp_path / "questions.md"
    command = ["--recipe", "scenes-srem", "--noise", "0.4", "--seeds", "1"]
    command += ["--only", "median", "-o", str(out), "--table", str(table)]
    assert questions.main([*command, *(part for setting in TINY for part in ("--set", setting))]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["answer"] for row in rows] == ["recipe", "median"]
    assert float(rows[0]["gain_rsum"]) == 0
    assert len(list((tmp_path / "questions.cells").iterdir())) == 2
    assert "| threshold | median | median of the batch | 1 |" in table.read_text()
    assert "40% noise" in capsys.readouterr().out


def test_a_mistake_on_the_command_line_is_a_sentence(capsys: pytest.CaptureFixture) -> None:
    assert questions.main(["--only", "tresholds"]) == 2
    assert capsys.readouterr().err == (
        "python -m benchmarks.questions: there is no question or answer called 'tresholds'; did you mean 'threshold'?\n"
    )


@pytest.mark.parametrize(("data", "rates"), [("cc152k", [0.0]), ("flickr8k", [0.4, 0.6])])
def test_questions_too_add_noise_only_where_the_data_have_none(
    data: str, rates: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[float] = []

    def run_questions(cells: list, out: Path, **_: object) -> list[dict]:
        asked.extend(recipe.noise.rate for _, recipe in cells)
        raise UserError("seen enough")

    monkeypatch.setattr("benchmarks.questions.run_questions", run_questions)
    command = ["--data", data, "--backbone", "sgr", "--only", "recipe", "--seeds", "1"]
    assert questions.main([*command, "-o", str(tmp_path / "q.csv")]) != 0
    assert sorted(set(asked)) == rates
