"""The mean of two backbones: of the similarities of two real cells, kept, resumed, and nowhere chosen."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from oracles import recall as oracle
from small_recipes import TINY
from sremkit.bench import grid
from sremkit.bench.ensembles import backbones_to_train, keys_to_keep, mean_rows, means_of
from sremkit.bench.grid import cell_key, final_metrics, read_rows, row_file, scores_file
from sremkit.bench.methods import method_cells, methods_table, run_methods
from sremkit.cli.main import main
from sremkit.config.recipes import Recipe, load_recipe, recipe_to_toml
from sremkit.data.training_pairs import read_split
from sremkit.errors import UserError
from sremkit.evaluation.detection import CROWD_FILE

SETTINGS = [*TINY, "model.sim_dim=8"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CSV file of a finished grid: SAF, SGR and their mean, two seeds."""
    out = tmp_path_factory.mktemp("finished") / "g.csv"
    run(out, "saf,sgr,saf+sgr", seeds=2)
    return out


@pytest.fixture
def own(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished grid that a test may change."""
    return Path(shutil.copytree(finished.parent, tmp_path / "own")) / finished.name


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the cells that are run from here on."""
    keys: list[str] = []
    run_cell = grid.run_cell
    monkeypatch.setattr(
        grid, "run_cell", lambda recipe, *rest: keys.append(cell_key(recipe)) or run_cell(recipe, *rest)
    )
    return keys


def run(out: Path, names: str, *, methods: str = "infonce", seeds: int = 1, jobs: int = 1) -> list:
    backbones = names.split(",")
    cells = method_cells("scenes", backbones, methods.split(","), [0.4], range(seeds), overrides=SETTINGS)
    return run_methods(cells, out, means=means_of(cells, backbones), jobs=jobs)


def by_hand(folder: Path, rows: list[dict], *, scale: str = "similarity") -> dict[str, float]:
    """The recalls of the mean of two score files, ranked by loops."""
    logits = [np.load(scores_file(folder, row["key"])).astype(np.float64) for row in rows]
    values = [1 / (1 + np.exp(-x)) for x in logits] if scale == "similarity" else logits
    test = read_split(load_recipe("scenes-infonce", TINY).data, "test")
    return oracle.recall(np.mean(values, axis=0).tolist(), test.image_of_text.tolist())


def the_cells(*names: str) -> list[tuple[dict, Recipe]]:
    return method_cells("scenes", names, ["infonce"], [0.4], [0], overrides=SETTINGS)


def test_a_mean_has_the_recalls_of_its_members_mean_similarity(finished: Path) -> None:
    rows = run(finished, "saf,sgr,saf+sgr", seeds=2)
    assert [(row["backbone"], row["seed"]) for row in rows[4:]] == [("saf+sgr", 0), ("saf+sgr", 1)]
    for seed in (0, 1):
        saf, sgr, mean = (row for row in rows if row["seed"] == seed)
        expected = by_hand(finished.with_suffix(".cells"), [saf, sgr])
        found = {key: value for key, value in mean.items() if key.startswith("test_")}
        assert found == pytest.approx({f"test_{k}": v for k, v in expected.items()}, rel=1e-12)
        assert mean["members"] == f"{saf['key']}+{sgr['key']}"
        assert mean["networks"] == 2
        assert mean["noise_hash"] == saf["noise_hash"]
        assert "val_rsum" not in mean
        assert "train_auroc" not in mean
    sums = {name: [row["test_rsum"] for row in rows if row["backbone"] == name] for name in ("saf", "sgr", "saf+sgr")}
    assert sums["saf+sgr"] not in (sums["saf"], sums["sgr"])


def test_a_mean_is_of_similarities_and_not_of_logits(own: Path) -> None:
    """A member that shouts: with logits ten times as large it would decide alone."""
    folder, cells, rows = own.with_suffix(".cells"), the_cells("saf", "sgr"), []
    generator = np.random.default_rng(0)
    for loudness, (_, recipe) in zip((1.0, 10.0), cells, strict=True):
        test = read_split(recipe.data, recipe.data.test_split)
        scores = loudness * generator.standard_normal((test.num_images, len(test)), dtype=np.float32)
        recalls = oracle.recall(scores.tolist(), test.image_of_text.tolist())
        np.save(scores_file(folder, cell_key(recipe)), scores)
        rows.append(change_row(folder, recipe, test_rsum=recalls["rsum"]))
    (mean,) = mean_rows(means_of(cells, ["saf+sgr"]), folder)
    assert mean["test_rsum"] == pytest.approx(by_hand(folder, rows)["rsum"], rel=1e-12)
    assert abs(mean["test_rsum"] - by_hand(folder, rows, scale="logit")["rsum"]) > 1


def test_a_mean_has_the_recalls_of_srem_eval_with_both_runs(finished: Path, tmp_path: Path) -> None:
    mean = next(row for row in run(finished, "saf,sgr,saf+sgr", seeds=1) if row["backbone"] == "saf+sgr")
    runs = []
    for labels, recipe in the_cells("saf", "sgr"):
        file, out = tmp_path / f"{labels['backbone']}.toml", tmp_path / labels["backbone"]
        file.write_text(recipe_to_toml(recipe))
        assert main(["train", str(file), "--out", str(out)]) == 0
        runs.append(str(out))
    result = tmp_path / "eval.json"
    assert main(["eval", *runs, "--split", "test", "-o", str(result)]) == 0
    metrics = json.loads(result.read_text())["metrics"]
    assert {f"test_{key}": value for key, value in metrics.items()} == {
        key: value for key, value in mean.items() if key.startswith("test_")
    }


def change_row(folder: Path, recipe: Recipe, **changes: object) -> dict:
    """Rewrite what a finished cell found."""
    file = row_file(folder, cell_key(recipe))
    row = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(row))
    return row


def test_only_members_of_a_mean_keep_scores(tmp_path: Path) -> None:
    rows = run(tmp_path / "g.csv", "saf,sgraf")
    folder = tmp_path / "g.cells"
    assert {file.suffix for file in folder.iterdir()} == {".json"}
    cells = the_cells("saf", "sgr", "sgraf")
    asked = keys_to_keep(means_of(cells, ["sgraf", "saf+sgr"]), folder)
    assert asked == {cell_key(cells[0][1]), cell_key(cells[1][1])}
    assert rows[1]["key"] not in asked


def test_a_finished_grid_with_its_means_is_not_touched_again(own: Path, trained: list[str]) -> None:
    folder = own.with_suffix(".cells")
    before = {file: file.read_bytes() for file in folder.iterdir()}
    for file in folder.glob("*.npy"):
        file.unlink()  # what has been averaged may go
    rows = run(own, "saf,sgr,saf+sgr", seeds=2)
    assert trained == []
    assert {file: file.read_bytes() for file in folder.iterdir()} == {
        file: content for file, content in before.items() if file.suffix == ".json"
    }
    assert len(rows) == 6


def test_a_finished_cell_without_scores_runs_again_with_a_message(
    own: Path, trained: list[str], capsys: pytest.CaptureFixture
) -> None:
    folder = own.with_suffix(".cells")
    before = {row["key"]: row for row in run(own, "saf,sgr,saf+sgr")}
    saf, sgr, mean = before
    row_file(folder, mean).unlink()
    scores = scores_file(folder, sgr).read_bytes()
    scores_file(folder, sgr).unlink()
    capsys.readouterr()
    rows = run(own, "saf,sgr,saf+sgr")
    assert trained == [sgr]
    assert "1 finished cell(s) kept no scores to average and will run again" in capsys.readouterr().out
    assert scores_file(folder, sgr).read_bytes() == scores
    assert rows[0] == before[saf]
    assert rows[2]["test_rsum"] == before[mean]["test_rsum"]


def test_a_member_that_ran_again_makes_a_new_mean(own: Path, trained: list[str]) -> None:
    saf, sgr, mean = run(own, "saf,sgr,saf+sgr")
    row_file(own.with_suffix(".cells"), saf["key"]).unlink()
    _, _, again = run(own, "saf,sgr,saf+sgr")
    assert trained == [saf["key"]]
    assert again["members"] == mean["members"] == f"{saf['key']}+{sgr['key']}"
    assert again["key"] != mean["key"]


def test_cells_in_subprocesses_and_their_means_give_the_same_rows(finished: Path, tmp_path: Path) -> None:
    alone = run(finished, "saf,sgr,saf+sgr")
    together = run(tmp_path / "g.csv", "saf+sgr", jobs=2)
    assert [row["backbone"] for row in together] == ["saf", "sgr", "saf+sgr"]
    for key in ("test_rsum", "train_auroc"):
        assert [row.get(key) for row in together] == [row.get(key) for row in alone]


def test_scores_of_another_run_are_refused(own: Path) -> None:
    folder, cells = own.with_suffix(".cells"), the_cells("saf", "sgr")
    file = scores_file(folder, cell_key(cells[1][1]))
    np.save(file, -np.load(file))
    change_row(folder, cells[0][1], seconds=0.0)  # so the mean has to be made anew
    with pytest.raises(UserError, match=rf"{file.name} does not give the recalls of {file.stem}.json"):
        mean_rows(means_of(cells, ["saf+sgr"]), folder)


def test_a_mean_wants_the_same_noise_and_the_same_test_pairs(own: Path) -> None:
    folder, cells = own.with_suffix(".cells"), the_cells("saf", "sgr")
    (mean,) = means_of(cells, ["saf+sgr"])
    row = change_row(folder, cells[1][1], noise_hash="other")
    with pytest.raises(UserError, match=r"saf\+sgr: the two recipes were trained with different noise"):
        mean_rows([mean], folder)
    data = replace(cells[1][1].data, options={"num_scenes": 9})
    other = replace(cells[1][1], data=data)
    row_file(folder, cell_key(other)).write_text(json.dumps(row))
    with pytest.raises(UserError, match=r"saf\+sgr: the two recipes test on different pairs"):
        mean_rows([replace(mean, members=(mean.members[0], other))], folder)


def test_peoples_verdicts_count_where_the_data_have_them(tmp_path: Path) -> None:
    """Of two pairs that people find right and one that they do not, one of the right ones stands below: 1 of 2."""
    data = replace(the_cells("saf")[0][1].data, source="scenes")
    test = read_split(data, "test")
    image, texts = test.image_ids[0], test.pair_ids
    lines = [f"{image}\t{texts[column]}\t0\t{votes}" for column, votes in enumerate(("3\t0", "2\t1", "0\t3"))]
    (tmp_path / CROWD_FILE).write_text("\n".join(lines) + "\n")
    scores = torch.zeros(test.num_images, len(test))
    scores[0, :3] = torch.tensor([5.0, 1.0, 2.0])
    assert final_metrics(scores, test, replace(data, source=str(tmp_path)))["crowd_auroc"] == 0.5
    assert "crowd_auroc" not in final_metrics(scores, test, data)


def test_members_of_means_are_trained_once() -> None:
    assert backbones_to_train(["saf+sgr", "dual", "sgr"]) == ["saf", "sgr", "dual"]
    cells = the_cells("sgraf", "saf+sgr", "saf")
    assert [labels["backbone"] for labels, _ in cells] == ["sgraf", "saf", "sgr"]
    (mean,) = means_of(cells, ["sgraf", "saf+sgr", "saf", "saf+sgr"])
    assert mean.labels == {**cells[0][0], "backbone": "saf+sgr"}
    assert [recipe.model["name"] for recipe in mean.members] == ["saf", "sgr"]


@pytest.mark.parametrize("name", ["saf+", "+", "saf+saf", "saf+sgr+dual"])
def test_a_name_that_is_no_mean_is_refused_in_words(name: str) -> None:
    with pytest.raises(UserError, match=r"is not a mean: two different backbones are joined by a plus"):
        backbones_to_train([name])


def test_means_stand_among_the_ensembles_and_count_their_networks(tmp_path: Path) -> None:
    rows = run(tmp_path / "g.csv", "saf,sgr,saf+sgr", methods="infonce,ncr")
    assert [row["networks"] for row in rows] == [1, 2, 1, 2, 2, 4]
    table = methods_table(rows, title="t")
    (single, singles), (several, ensembles) = table.sections
    assert (single, several) == ("single models", "ensembles (mean of similarities)")
    assert [line[:3] for line in singles] == [["saf", "0.4", "infonce *"], ["sgr", "0.4", "infonce *"]]
    assert [[line[0], line[2]] for line in ensembles] == [
        ["saf", "ncr *"], ["sgr", "ncr *"], ["saf+sgr", "infonce *"], ["saf+sgr", "ncr *"],
    ]  # fmt: skip
    assert ensembles[2][table.columns.index("AUROC")] == "-"
    assert table.notes[-1:] == ["Ensembles of more than two networks: saf+sgr ncr (4)."]


def test_the_command_averages_and_curves_leave_means_out(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = Path(shutil.copytree(finished.parent, tmp_path / "own")) / "g.csv"
    command = ["bench", "methods", "--data", "scenes", "--backbone", "saf+sgr", "--methods", "infonce"]
    command += ["--noise", "0.4", "--seeds", "2", "-o", str(out), "--table", str(tmp_path / "t.md")]
    assert main([*command, *(part for setting in SETTINGS for part in ("--set", setting))]) == 0
    assert "| saf+sgr | 0.4 | infonce * | 2 | 1+1 |" in (tmp_path / "t.md").read_text()
    with out.open() as file:
        assert [row["backbone"] for row in csv.DictReader(file)] == ["saf"] * 2 + ["sgr"] * 2 + ["saf+sgr"] * 2
    assert [row["backbone"] for row in read_rows(out)] == ["saf"] * 2 + ["sgr"] * 2
    capsys.readouterr()
    assert main(["bench", "methods", "--backbone", "saf+", "-o", str(out)]) == 2
    assert "'saf+' is not a mean" in capsys.readouterr().err
