"""Paired differences to the best rival: hand-computed values, Student's quantiles, and what the table makes of them."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

from sremkit.bench.differences import differences_to_best_rival, paired_difference, t_quantile
from sremkit.bench.grid import cell_key, read_csv, write_csv
from sremkit.bench.methods import methods_table, with_recipes
from sremkit.bench.tables import Table, bold
from sremkit.cli.main import main
from sremkit.config.recipes import load_recipe, recipe_files, recipe_to_toml


def rows_of(method: str, values: list[float], *, rate: float = 0.6, networks: int = 1, **more) -> list[dict]:
    return [
        {"data": "flickr8k", "backbone": "dual", "method": method, "rate": rate, "seed": seed, "test_rsum": value,
         "networks": networks, **more}
        for seed, value in enumerate(values)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.7062047), (2, 4.3026527), (4, 2.7764451), (9, 2.2621572), (1000, 1.9623391)]
)
def test_the_quantiles_are_those_of_published_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, abs=1e-6)


def test_a_difference_is_the_one_computed_by_hand() -> None:
    # Gains 1, 2, 6: mean 3, deviation sqrt(7), so 3 ± 4.3026527 sqrt(7 / 3).
    gain = paired_difference({0: 11.0, 1: 12.0, 2: 16.0}, {0: 10.0, 1: 10.0, 2: 10.0})
    assert gain.mean == 3.0
    assert gain.high - gain.mean == pytest.approx(4.3026527 * math.sqrt(7 / 3), abs=1e-6)
    assert gain.mean - gain.low == pytest.approx(gain.high - gain.mean)
    assert not gain.is_ahead


def test_seeds_are_paired_not_pooled() -> None:
    seeds = {0: 200.0, 1: 250.0, 2: 300.0}
    gain = paired_difference({seed: value + 1 for seed, value in seeds.items()}, seeds)
    assert (gain.low, gain.high) == (1.0, 1.0)  # pooled deviations of 50 would say nothing
    assert gain.is_ahead
    assert paired_difference({0: 3.0, 1: 5.0, 7: 900.0}, {0: 1.0, 1: 3.0, 8: -900.0}).mean == 2.0


def test_an_interval_needs_two_seeds() -> None:
    with pytest.raises(ValueError, match="at least two seeds that both methods have, got 1"):
        paired_difference({0: 1.0, 1: 2.0}, {1: 1.0, 2: 2.0})


def test_the_interval_covers_the_true_difference_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).standard_normal((2000, 3)) + 5
    gains = [paired_difference(dict(enumerate(d)), dict.fromkeys(range(3), 0.0)) for d in draws.tolist()]
    assert np.mean([gain.low < 5 < gain.high for gain in gains]) == pytest.approx(0.95, abs=0.015)


def test_the_rival_is_the_best_other_method_of_the_same_kind() -> None:
    rows = rows_of("a", [10.0, 11.0]) + rows_of("b", [20.0, 21.0]) + rows_of("c", [30.0, 32.0])
    rows += rows_of("two", [90.0, 91.0], networks=2) + rows_of("b", [99.0, 99.0], rate=0.4)
    found = differences_to_best_rival(rows)
    rivals = {key[-1]: gain.rival for key, gain in found.items()}
    assert rivals == {"a": "c", "b": "c", "c": "b"}  # not the ensemble, not another rate
    assert found["flickr8k", "dual", 0.6, "c"].mean == 10.5


def test_the_table_is_bold_only_where_the_interval_excludes_0() -> None:
    sure = methods_table(rows_of("srem", [290.0, 292.0, 291.0]) + rows_of("rcl", [280.0, 281.5, 281.0]), title="t")
    cells = {line[2]: line for _, lines in sure.sections for line in lines}
    column = list(sure.columns).index("R_sum")
    assert cells["srem"][column] == "**291.0 ± 1.0**"
    assert cells["rcl"][column] == "280.8 ± 0.8"
    assert cells["srem"][list(sure.columns).index("against the best rival")].startswith("+10.2 (+9.4 to +10.9) rcl")
    assert cells["rcl"][list(sure.columns).index("against the best rival")].startswith("-10.2 (-10.9 to -9.4) srem")
    assert any("Student's t" in note for note in sure.notes)
    open_ = methods_table(rows_of("srem", [290.0, 292.0]) + rows_of("rcl", [280.0, 291.0]), title="t")
    assert "**" not in open_.as_text()


def test_bold_is_translated_into_every_format() -> None:
    table = Table("t", ["name", "x"])
    table.add_section("s", [["a *", bold("1 < 2")]])
    assert "| a * | **1 < 2** |" in table.as_markdown()
    assert r"\textbf{1 < 2}" in table.as_latex()
    assert "<b>1 &lt; 2</b>" in table.as_html()
    assert "<td>a *</td>" in table.as_html()


def test_trials_are_read_from_recipes_and_change_no_key() -> None:
    recipe = load_recipe("flickr8k-dual-srem-plus")
    assert recipe.provenance.trials == 54
    changed = load_recipe("flickr8k-dual-srem-plus", ["provenance.trials=1"])
    assert changed.provenance.trials == 1
    assert cell_key(changed) == cell_key(recipe)
    assert "provenance" not in tomllib.loads(recipe_to_toml(recipe))
    table = methods_table(with_recipes(rows_of("srem-plus", [1.0]) + rows_of("rcl", [1.0])), title="t")
    shown = {line[2]: line[list(table.columns).index("trials")] for _, lines in table.sections for line in lines}
    assert shown == {"srem-plus": "54", "rcl": "13"}
    adapted = methods_table(rows_of("rcl", [1.0], recipe="flickr8k-dual-srem-plus", adapted=True), title="t")
    assert "trials" not in adapted.columns


def test_every_compared_recipe_says_how_many_trials_it_had() -> None:
    names = [name for name in recipe_files() if name.startswith(("flickr8k-dual", "flickr8k-sgr"))]
    assert names
    assert [name for name in names if load_recipe(name).provenance.trials is None] == []


def test_a_table_is_made_from_finished_rows(tmp_path: Path, capsys) -> None:
    rows = rows_of("srem", [290.0, 292.0, 291.0], noisy_pull_ratio=0.05) + rows_of("rcl", [280.0, 281.5, 281.0])
    write_csv(rows, tmp_path / "rows.csv")
    back = read_csv(tmp_path / "rows.csv")
    assert back[0] == rows[0]
    assert main(["bench", "methods", "--from", str(tmp_path / "rows.csv"), "--table", str(tmp_path / "t.md")]) == 0
    printed = capsys.readouterr().out
    assert "+10.2 (+9.4 to +10.9) rcl" in printed
    assert "written to" not in printed.splitlines()[-2]
    assert "**291.0 ± 1.0**" in (tmp_path / "t.md").read_text()
    assert main(["bench", "methods", "--from", str(tmp_path / "none.csv")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_every_finished_table_of_the_repository_can_be_read() -> None:
    read = 0
    for path in (Path(__file__).parents[2] / "results").glob("*.csv"):
        if {"data", "backbone", "method", "rate"} <= set(path.read_text(encoding="utf-8").split("\n", 1)[0].split(",")):
            assert methods_table(with_recipes(read_csv(path)), title=path.stem).sections
            read += 1
    assert read > 15
