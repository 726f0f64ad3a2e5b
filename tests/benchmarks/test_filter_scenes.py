"""What filters see of each pair_type of mismatch is counted as it should be, and the bench goes on where it stood."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import filter_scenes
from benchmarks.filter_scenes import (
    Mismatches,
    filter_recipe,
    filter_table,
    kept,
    prepare_mismatched,
    run_bench,
    run_cell,
)
from benchmarks.mismatch_types import CORRECT, SHUFFLED, SUBTLE, TYPES, TypeObserver, aurocs, types_of_pairs
from small_recipes import TINY
from sremkit.data.batch import Batch
from sremkit.data.generated.scenes import SceneTruth, make_scenes
from sremkit.data.pairs import Pairs
from sremkit.errors import UserError
from sremkit.evaluation.scoring import InBatchScores
from sremkit.objectives import Loss, PairReport

pytest.importorskip("PIL")

MIXED = Mismatches(rate=0.4, subtle_share=0.5)


def batch_of(*pair_id: int) -> Batch:
    return Batch(pair_id=torch.tensor(pair_id), image_id=torch.tensor(pair_id))


def loss(**report: Any) -> Loss:
    return Loss(total=torch.zeros(()), parts={}, report=PairReport(**report) if report else None)


def selecting(clean_i2t: list[bool], clean_t2i: list[bool]) -> Loss:
    return loss(clean=(torch.tensor(clean_i2t), torch.tensor(clean_t2i)))


# Pairs 0 to 5: correct, shuffled, subtle, correct, subtle, correct.
PAIR_TYPES = np.array([CORRECT, SHUFFLED, SUBTLE, CORRECT, SUBTLE, CORRECT])


def observe_two_batches(observer: TypeObserver) -> None:
    observer.step(batch_of(5, 1, 2), selecting([True, False, True], [True, True, True]), torch.tensor([1.0, 2.0, 0.0]))
    observer.step(
        batch_of(4, 0, 3),
        selecting([False, True, False], [False, False, True]),
        torch.tensor([4.0, 0.5, 0.5]),
    )


EXPECTED = {
    # Right: pair 5 in both directions, 0 in one, 3 in the other: 4 of 6. Shuffled: pair 1 in one of two. Subtle:
    # pair 2 in both, pair 4 in none: 2 of 4.
    "selected_correct": 4 / 6,
    "selected_shuffled": 1 / 2,
    "selected_subtle": 2 / 4,
    # Pull: right 1 + 0.5 + 0.5, shuffled 2, subtle 0 + 4; 8 in all.
    "pull_correct": 2 / 8,
    "pull_shuffled": 2 / 8,
    "pull_subtle": 4 / 8,
}


def test_the_shares_of_each_type_in_a_worked_epoch() -> None:
    observer = TypeObserver(PAIR_TYPES)
    observe_two_batches(observer)
    assert observer.finish_epoch() == pytest.approx(EXPECTED)


def test_an_epoch_starts_from_nothing() -> None:
    observer = TypeObserver(PAIR_TYPES)
    observe_two_batches(observer)
    observer.finish_epoch()
    observer.step(batch_of(1, 0), loss(), torch.tensor([3.0, 1.0]))
    # A method that selects nothing has no selected shares, not shares of 0.
    assert observer.finish_epoch() == {"pull_correct": 0.25, "pull_shuffled": 0.75, "pull_subtle": 0.0}
    assert observer.finish_epoch() == {}


def test_a_stopped_epoch_goes_on_from_its_state() -> None:
    whole, before, after = TypeObserver(PAIR_TYPES), TypeObserver(PAIR_TYPES), TypeObserver(PAIR_TYPES)
    observe_two_batches(whole)
    observe_two_batches(before)
    after.load_state(json.loads(json.dumps(before.state())))
    for observer in (whole, after):
        observer.step(batch_of(1, 0), loss(), torch.tensor([3.0, 1.0]))
    assert after.finish_epoch() == whole.finish_epoch()


def test_a_type_that_is_absent_has_no_share() -> None:
    observer = TypeObserver(np.array([CORRECT, SUBTLE]))
    observer.step(batch_of(0, 1), selecting([True, True], [True, False]), None)
    measured = observer.finish_epoch()
    assert np.isnan(measured.pop("selected_shuffled"))
    assert measured == {"selected_correct": 1.0, "selected_subtle": 0.5}


def test_wrong_pairs_that_are_not_subtle_are_shuffled() -> None:
    truth = SceneTruth(is_noisy=np.array([False, True, True]), is_subtle=np.array([False, False, True]))
    assert types_of_pairs(truth).tolist() == [CORRECT, SHUFFLED, SUBTLE]


def test_each_type_of_mismatch_is_ranked_against_correct_pairs_alone() -> None:
    # Right pairs score 2, 4, 5. The shuffled one, 1, is below all three. The subtle ones, 4 and 6: the first is
    # below one and ties with one (1.5 of 3), the second below none. Against the shuffled one they do not count.
    score = np.array([2.0, 1.0, 4.0, 4.0, 6.0, 5.0])
    assert aurocs(score, PAIR_TYPES) == {"shuffled_auroc": 1.0, "subtle_auroc": 1.5 / 6}


def test_what_is_kept_is_the_selection_or_the_weight_or_everything() -> None:
    observer = TypeObserver(PAIR_TYPES)
    observer.step(batch_of(0, 1, 2), loss(weight=torch.tensor([1.0, 0.0, 0.5])))
    observer.step(batch_of(3, 4, 5), loss(weight=torch.tensor([0.75, 0.25, 0.8])))
    # Correct 1, 0.75, 0.8; shuffled 0; subtle 0.5, 0.25: both are below all correct ones.
    assert kept(observer, observer.finish_epoch()) == pytest.approx(
        {
            "kept_by": "weight",
            "kept_correct": 0.85,
            "kept_shuffled": 0.0,
            "kept_subtle": 0.375,
            "weight_shuffled_auroc": 1.0,
            "weight_subtle_auroc": 1.0,
        }
    )
    assert kept(observer, EXPECTED) == {
        "kept_by": "selected", "kept_correct": 4 / 6, "kept_shuffled": 1 / 2, "kept_subtle": 2 / 4
    }  # fmt: skip
    assert kept(observer, {"pull_correct": 1.0}) == {}


def test_training_pairs_are_mismatched_and_the_rest_stays_clean() -> None:
    recipe = filter_recipe("srem", "vse-infty", 3, [*TINY, "data.train_options.num_scenes=20"])
    prepared, pair_type = prepare_mismatched(recipe, MIXED)
    clean = make_scenes(20, split="train", seed=3)
    assert prepared.train.pair_ids == clean.pair_ids
    changed = np.array([given != original for given, original in zip(prepared.train.texts, clean.texts, strict=True)])
    moved = prepared.train.image_of_text != clean.image_of_text
    assert changed.tolist() == (pair_type == SUBTLE).tolist()
    assert moved.tolist() == (pair_type == SHUFFLED).tolist()
    assert changed.sum() == 20  # of 100 pairs
    assert 15 <= moved.sum() <= 20  # a shuffle may give a text its own image back
    val = make_scenes(8, split="val", seed=3)
    assert prepared.val.texts == val.texts
    assert prepared.val.image_of_text.tolist() == val.image_of_text.tolist()


def test_a_recipe_differs_from_the_shipped_one_in_noise_seed_and_backbone() -> None:
    recipe = filter_recipe("srem-plus", "scan-t2i", 2, ["model.embed_size=16"])
    assert (recipe.noise.rate, recipe.training.seed, recipe.data.options["seed"]) == (0.0, 2, 2)
    assert recipe.model == {"name": "scan-t2i", "embed_size": 16, "word_dim": 32}
    assert filter_recipe("srem", "vse-infty", 0).model["embed_size"] == 128
    with pytest.raises(UserError, match="no settings for the backbone 'scan-i2t'; did you mean 'scan-t2i'"):
        filter_recipe("srem", "scan-i2t", 0)
    with pytest.raises(UserError, match="'mscn' needs trusted pairs"):
        filter_recipe("mscn", "vse-infty", 0)


@pytest.mark.parametrize("method", ["infonce", "srem", "srem-plus"])
def test_a_cell_reports_what_its_method_kept_of_each_type(method: str) -> None:
    row = run_cell(filter_recipe(method, "vse-infty", 0, [*TINY, "data.train_options.num_scenes=24"]), MIXED)
    assert (row["pairs"], row["epochs"], row["warmup_epochs"]) == (120, 2, 1)
    assert (row["val_images"], row["batch_size"], row["share_subtle"]) == (8, 20, 0.2)
    assert 0 < row["subtle_auroc"] < 1
    assert sum(row[f"pull_{name}"] for name in TYPES) == pytest.approx(1)
    assert row.get("kept_by") == {"infonce": None, "srem": "selected", "srem-plus": "selected"}[method]
    assert ("weight_subtle_auroc" in row) == (method != "infonce")
    assert ("kept_subtle" in row) == ("kept_by" in row)


@pytest.mark.parametrize(
    ("without", "expected"), [(None, [0, 1, 2, 3, 4, 5]), ("shuffled", [0, 2, 3, 4, 5]), ("wrong", [0, 3, 5])]
)
def test_pairs_are_left_out_by_the_truth(without: str | None, expected: list[int]) -> None:
    assert Mismatches(without=without).used(PAIR_TYPES).tolist() == expected


def test_without_wrong_pairs_only_correct_ones_are_trained_on_and_all_are_scored() -> None:
    recipe = filter_recipe("srem-plus", "vse-infty", 0, [*TINY, "data.train_options.num_scenes=40"])
    row = run_cell(recipe, Mismatches(without="wrong"))
    assert (row["pull_correct"], row["pull_shuffled"], row["pull_subtle"]) == (1.0, 0.0, 0.0)
    assert row["pairs"] == 200
    assert 0 < row["subtle_auroc"] < 1


def test_other_mismatches_have_other_keys() -> None:
    made = [Mismatches(), Mismatches(rate=0.2), Mismatches(subtle_share=1.0)]
    made += [Mismatches(without="shuffled"), Mismatches(without="wrong")]
    assert len({each.key for each in made}) == 5


def test_the_best_model_is_scored_and_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Tensor]] = []
    scores = iter([30.0, 50.0, 40.0])

    def validated(matcher: Any, *_: Any) -> dict[str, float]:
        seen.append({name: t.clone() for name, t in matcher.state_dict().items()})
        return {"rsum": next(scores)}

    states: list[dict[str, Tensor]] = []

    def falling_scores(matcher: Any, pairs: Pairs, *_: Any) -> InBatchScores:
        states.append({name: t.clone() for name, t in matcher.state_dict().items()})
        falling = np.linspace(1.0, 0.0, len(pairs))
        return InBatchScores(match=falling, energy_i2t=falling, energy_t2i=falling)

    monkeypatch.setattr("sremkit.experiment.training_run.validation_metrics", validated)
    monkeypatch.setattr(filter_scenes, "in_batch_scores", falling_scores)
    recipe = filter_recipe("infonce", "vse-infty", 0, [*TINY, "training.epochs=2"])
    row = run_cell(recipe, MIXED)
    assert (row["val_rsum"], row["last_val_rsum"], row["best_epoch"]) == (50.0, 40.0, 2)
    assert all(torch.equal(t, seen[1][name]) for name, t in states[0].items())
    assert not all(torch.equal(t, seen[2][name]) for name, t in states[0].items())
    _, pair_type = prepare_mismatched(recipe, MIXED)
    later = np.subtract.outer(np.flatnonzero(pair_type == SUBTLE), np.flatnonzero(pair_type == CORRECT)) > 0
    assert row["subtle_auroc"] == pytest.approx(later.mean())  # later pairs score lower here


def test_finished_rows_are_kept_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, float]] = []

    def made(recipe: Any, mismatches: Mismatches) -> dict[str, Any]:
        if recipe.name == "scenes-srem" and len(ran) == 1:
            raise KeyboardInterrupt
        ran.append((recipe.name, mismatches.subtle_share))
        numbers = {"val_rsum": 500.0, "last_val_rsum": 490.0, "shuffled_auroc": 0.99, "subtle_auroc": 0.6}
        return {**numbers, "seconds": 1.0, **({"kept_subtle": 0.7} if recipe.name == "scenes-srem" else {})}

    monkeypatch.setattr(filter_scenes, "run_cell", made)
    out = tmp_path / "rows.csv"
    cells = [
        ({"backbone": "vse-infty", "method": m, "seed": 0}, filter_recipe(m, "vse-infty", 0)) for m in ("rcl", "srem")
    ]
    with pytest.raises(KeyboardInterrupt):
        run_bench(cells, out, MIXED)
    ran.append(("stopped", 0.0))
    rows = run_bench(cells, out, MIXED)
    assert ran == [("scenes-rcl", 0.5), ("stopped", 0.0), ("scenes-srem", 0.5)]
    assert [row["method"] for row in rows] == ["rcl", "srem"]
    ((heading, lines),) = filter_table(rows).sections
    assert heading == "vse-infty"
    assert [line[:2] + line[8:9] for line in lines] == [["rcl", "1", "-"], ["srem", "1", "0.700"]]
    # Other mismatches are other cells, and are added to the file.
    assert len(run_bench(cells[:1], out, Mismatches(0.2, 1.0))) == 1
    with out.open() as file:
        assert [row["subtle_share"] for row in csv.DictReader(file)] == ["0.5", "0.5", "1"]


def test_a_file_of_another_benchmark_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    other = tmp_path / "other.csv"
    other.write_text("name,value\na,1\n")
    assert filter_scenes.main(["--seeds", "1", "-o", str(other)]) == 2
    assert "not a file of this benchmark" in capsys.readouterr().err
    assert other.read_text() == "name,value\na,1\n"


def test_the_command_writes_its_rows_and_shows_a_table(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "new" / "rows.csv"
    command = ["--methods", "srem", "--seeds", "1", "-o", str(out)]
    assert filter_scenes.main([*command, *(part for setting in TINY for part in ("--set", setting))]) == 0
    with out.open() as file:
        (row,) = csv.DictReader(file)
    assert (row["backbone"], row["method"], row["seed"], row["rate"]) == ("vse-infty", "srem", "0", "0.4")
    assert "| srem | 1 |" in capsys.readouterr().out
