"""Our numbers and published ones are compared only for the same test protocol and noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oracles import recall as oracle
from small_recipes import TINY, tiny
from sremkit.bench import grid
from sremkit.bench.ensembles import means_of
from sremkit.bench.grid import cell_key, final_metrics
from sremkit.bench.methods import default_rates, method_cells, methods_table, run_methods
from sremkit.bench.published import published_rsum
from sremkit.cli.main import main
from sremkit.config.recipes import load_recipe, recipe_files, recipe_to_toml
from sremkit.data.training_pairs import read_split
from sremkit.errors import UserError

SETTINGS = [*TINY, "model.sim_dim=8"]


def row(backbone: str, method: str, rsum: float, *, data: str = "f30k", rate: float = 0.4, **more: Any) -> dict:
    labels = {"data": data, "backbone": backbone, "method": method, "rate": rate, "seed": 0}
    return {**labels, "test_rsum": rsum, "networks": 1, **more}


def column(table: Any, name: str, section: int = 0) -> list[str]:
    place = list(table.columns).index(name)
    return [line[place] for line in table.sections[section][1]]


def recalls_in_two_folds(scores: torch.Tensor, image_of_text: np.ndarray) -> dict[str, float]:
    """Each half of the images with its own texts, ranked by loops; the mean of both."""
    half, found = len(scores) // 2, []
    for first in (0, half):
        texts = [t for t, image in enumerate(image_of_text) if first <= image < first + half]
        block = scores[first : first + half][:, texts].tolist()
        found.append(oracle.recall(block, [int(image_of_text[t]) - first for t in texts]))
    return {key: (found[0][key] + found[1][key]) / 2 for key in found[0] if "R@" in key}


def test_recalls_are_means_of_folds_where_the_recipe_tests_in_folds() -> None:
    data = tiny(data__test_folds=2).data
    test = read_split(data, data.test_split)
    scores = torch.randn(test.num_images, len(test), generator=torch.Generator().manual_seed(0))
    found = final_metrics(scores, test, data)
    expected = recalls_in_two_folds(scores, test.image_of_text)
    assert {key: found[f"test_{key}"] for key in expected} == pytest.approx(expected, rel=1e-12)
    assert found["test_rsum"] == pytest.approx(sum(expected.values()), rel=1e-12)
    assert found["test_folds"] == 2
    whole = final_metrics(scores, test, tiny().data)
    assert whole["test_rsum"] < found["test_rsum"] - 10  # among half as many everything is found more easily
    assert "test_folds" not in whole


def test_the_recipes_for_coco_test_in_five_folds_and_no_other_setting_is_new() -> None:
    folds = {name: load_recipe(name).data.test_folds for name in recipe_files()}
    assert {name for name, number in folds.items() if number == 5} == {
        name for name in folds if name.startswith("coco-")
    }
    assert set(folds.values()) == {5, None}


def test_folds_that_are_not_set_leave_the_keys_of_finished_cells_alone() -> None:
    assert "test_folds" not in recipe_to_toml(tiny())
    folded = tiny(data__test_folds=2)
    assert "test_folds = 2" in recipe_to_toml(folded)
    assert cell_key(folded) != cell_key(tiny())


def test_a_mean_of_cells_tested_in_folds_is_tested_in_folds(tmp_path: Path) -> None:
    cells = method_cells("scenes", ["saf+sgr"], ["infonce"], [0.4], [0], overrides=["data.test_folds=2", *SETTINGS])
    rows = run_methods(cells, tmp_path / "g.csv", means=means_of(cells, ["saf+sgr"]))
    assert [r["test_folds"] for r in rows] == [2, 2, 2]


def test_folds_that_do_not_fit_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    cells = method_cells("scenes", ["vse-infty"], ["infonce"], [0.4], [0], overrides=["data.test_folds=3", *TINY])
    with pytest.raises(UserError, match=r"data\.test_folds is 3, but the 8 images of the split 'test'"):
        run_methods(cells, tmp_path / "g.csv")
    assert list(tmp_path.iterdir()) == []


def test_our_rows_show_the_published_sum_of_the_same_cell() -> None:
    rows = [
        row("sgr", "srem", 480.0),
        row("sgr", "hinge", 90.0),
        row("saf+sgr", "srem", 494.0, networks=2),
        row("saf+sgr", "srem", 496.0, networks=2, seed=1),
        row("sgr+saf", "srem", 505.0, rate=0.2, networks=2),
        row("saf+sgr", "srem-plus", 499.0, networks=2),
    ]
    table = methods_table(rows, title="t")
    assert column(table, "published R_sum") == ["-", "81.8"]  # SGR alone was printed without any defence
    assert column(table, "published R_sum", 1) == ["495.4", "507.8", "-"]
    assert column(table, "R_sum", 1)[0] == "495.0 ± 1.4"
    assert set(column(table, "published R_sum", 2)) == {"-"}
    without = methods_table([row("dual", "srem", 480.0)], title="t")
    assert "published R_sum" not in without.columns


def test_a_sum_over_all_images_is_not_compared_with_one_over_folds() -> None:
    assert published_rsum(row("saf+sgr", "srem", 0.0, data="coco", test_folds=5)) == "518.4"
    assert published_rsum(row("saf+sgr", "srem", 0.0, data="coco")) is None
    folded = row("saf+sgr", "srem", 517.0, data="coco", networks=2, test_folds=5)
    table = methods_table([folded], title="t")
    assert column(table, "published R_sum") == ["518.4"]
    assert any(heading.endswith("table 1, coco, mean of 5 folds: ensembles") for heading, _ in table.sections)
    assert all("mean of 5 folds" in heading for heading, _ in table.sections if heading.startswith("published"))
    whole = methods_table([row("saf+sgr", "srem", 420.0, data="coco", networks=2)], title="t")
    assert "published R_sum" not in whole.columns


def test_real_noise_is_named_and_compared_only_where_none_was_added() -> None:
    real = methods_table([row("saf+sgr", "srem", 371.0, data="cc152k", rate=0.0, networks=2)], title="t")
    assert column(real, "noise") == ["real"]
    assert column(real, "published R_sum") == ["372.2"]
    assert set(column(real, "noise", 2)) == {"real"}
    added = methods_table([row("saf+sgr", "srem", 350.0, data="cc152k", rate=0.2, networks=2)], title="t")
    assert column(added, "noise") == ["real + 0.2"]
    assert len(added.sections) == 1
    clean = methods_table([row("saf+sgr", "srem", 520.0, rate=0.0, networks=2)], title="t")
    assert column(clean, "noise") == ["0"]
    assert len(clean.sections) == 1


@pytest.mark.parametrize(
    ("data", "noise", "rates"),
    [
        ("cc152k:/data", [], [0.0]),
        ("cc152k", ["--noise", "0.2"], [0.2]),
        ("f30k:/data", [], [0.2, 0.4, 0.6]),
        ("f30k", ["--noise", "0"], [0.0]),
    ],
)
def test_noise_is_added_by_itself_only_where_the_data_have_none(
    data: str, noise: list[str], rates: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    asked: list[float] = []

    def run(cells: list, out: Path, **_: object) -> list[dict]:
        asked.extend(recipe.noise.rate for _, recipe in cells)
        return [{**labels, "test_rsum": 1.0} for labels, _ in cells]

    monkeypatch.setattr("sremkit.bench.methods.run_methods", run)
    command = ["bench", "methods", "--data", data, "--backbone", "sgr", "--methods", "srem", "--seeds", "1"]
    assert main([*command, *noise, "-o", str(tmp_path / "g.csv")]) == 0
    assert asked == rates
    title = capsys.readouterr().out.strip().splitlines()[0]
    said = "noise per caption" if any(rates) else "no noise added"
    assert title.startswith(f"{data.split(':')[0]}, {said}, ")
    if not noise:
        assert default_rates(data) == rates


def test_a_resumed_grid_counts_what_it_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    found = {"val_rsum": 1.0, "last_val_rsum": 1.0, "seconds": 1.0, "test_rsum": 1.0}
    monkeypatch.setattr(grid, "run_cell", lambda *_: dict(found))

    def printed_lines(seeds: int) -> list[str]:
        cells = method_cells("scenes", ["vse-infty"], ["infonce"], [0.4], range(seeds))
        run_methods(cells, tmp_path / "g.csv")
        return [line.split(" vse")[0] for line in capsys.readouterr().out.splitlines()]

    assert printed_lines(2) == ["[1/2]", "[2/2]"]
    assert printed_lines(4) == ["2 of 4 cells are finished already", "[3/4]", "[4/4]"]
    assert printed_lines(4) == ["4 of 4 cells are finished already"]


def test_a_cell_that_runs_again_for_its_scores_does_not_count_as_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    cells = method_cells("scenes", ["saf", "sgr"], ["infonce"], [0.4], [0], overrides=SETTINGS)
    run_methods(cells, tmp_path / "g.csv")
    capsys.readouterr()
    run_methods(cells, tmp_path / "g.csv", means=means_of(cells, ["saf+sgr"]))
    printed = capsys.readouterr().out
    assert "finished already" not in printed
    assert "[1/2] saf" in printed
    assert "[2/2] sgr" in printed


@pytest.mark.parametrize("bench", ["methods", "efficiency"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--data", "f30k:/nowhere"],
            "the data 'f30k' have no recipes for the backbone 'dual'; they have for: saf, sgr, sgraf",
        ),
        (
            ["--data", "f30", "--backbone", "sgr"],
            "there are no data called 'f30' with recipes; did you mean 'f30k'?",
        ),
    ],
)
def test_the_error_for_data_without_such_recipes_lists_those_there_are(
    bench: str, arguments: list[str], message: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", bench, *arguments]) == 2
    assert capsys.readouterr().err == f"srem: {message}\n"
    assert list(tmp_path.iterdir()) == []


def test_missing_data_leave_nothing_behind(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["bench", "methods", "--data", "f30k:nowhere", "--backbone", "sgr", "--methods", "srem"]
    assert main(command) == 2
    assert "nowhere" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_finished_grid_needs_its_data_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"val_rsum": 1.0, "last_val_rsum": 1.0, "seconds": 1.0, "test_rsum": 1.0}
    monkeypatch.setattr(grid, "run_cell", lambda *_: dict(found))
    cells = method_cells("scenes", ["vse-infty"], ["infonce"], [0.4], [0])
    ((labels, recipe),) = cells
    gone = [(labels, replace(recipe, data=replace(recipe.data, source=str(tmp_path / "gone"))))]
    with pytest.raises(UserError, match="gone"):
        run_methods(gone, tmp_path / "g.csv")
    grid.run_grid(gone, tmp_path / "g.cells")
    assert run_methods(gone, tmp_path / "g.csv")[0]["test_rsum"] == 1.0
