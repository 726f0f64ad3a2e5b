"""Old names keep working: recipe keys, options, grid cells, and runs that an earlier version left behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sremkit.bench.grid import cell_key
from sremkit.cli.main import main
from sremkit.config import aliases
from sremkit.config.aliases import (
    RECIPE_KEYS,
    RenamedWarning,
    rename_keys,
    rename_options,
    rename_tensors,
    table_for_hashing,
)
from sremkit.config.recipes import load_recipe, recipe_from_table
from sremkit.errors import UserError
from sremkit.training.run_folder import RunFolder

OLD_RUNS = Path(__file__).parents[1] / "assets" / "runs_of_2026_11"


def test_no_new_name_is_an_old_one_and_none_leads_to_two() -> None:
    assert not set(RECIPE_KEYS) & set(RECIPE_KEYS.values())
    assert len(set(RECIPE_KEYS.values())) == len(RECIPE_KEYS)
    assert all(old.split(".")[0] == new.split(".")[0] for old, new in RECIPE_KEYS.items())


def test_an_old_key_works_and_warns_with_both_names() -> None:
    with pytest.warns(RenamedWarning, match=r"'training\.clip' is now 'training\.max_grad_norm'"):
        assert load_recipe("scenes-srem", ["training.clip=1.5"]).training.max_grad_norm == 1.5
    table = {
        "name": "mine",
        "data": {"source": "scenes"},
        "model": {"name": "dual"},
        "method": {"name": "srem-plus", "rematch_among": 4},
        "training": {"average": 0.9, "recorded": True},
    }
    with pytest.warns(RenamedWarning) as warned:
        recipe = recipe_from_table(table)
    assert len(warned) == 1  # one sentence for all of them
    for old in ("training.average", "training.recorded", "method.rematch_among"):
        assert f"'{old}' is now '{RECIPE_KEYS[old]}'" in str(warned[0].message)
    assert (recipe.training.ema_decay, recipe.training.cuda_graphs) == (0.9, True)
    assert recipe.method == {"name": "srem-plus", "rematch_top_k": 4}
    assert "clip" not in table["training"]  # what was given is left as it was


def test_a_key_under_both_names_is_refused() -> None:
    table = {"training": {"clip": 1.0, "max_grad_norm": 2.0}}
    with pytest.raises(UserError, match=r"sets both; leave out 'training\.clip'"):
        rename_keys(table)


def test_the_command_line_warns_once_and_goes_on() -> None:
    command = ["train", "scenes-srem", "--set", "training.clip=1.5", "--set", "training.clip=1.5"]
    run = subprocess.run(
        [sys.executable, "-m", "sremkit", *command, "--print-config"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "max_grad_norm = 1.5" in run.stdout
    assert run.stderr == (
        "srem: 'training.clip' is now 'training.max_grad_norm'; the old name works for one more version\n"
    )


def test_old_options_and_values_of_a_command_are_renamed(monkeypatch) -> None:
    monkeypatch.setattr(aliases, "OPTIONS", {"fly": {"--wing": "--wings"}, "fly far": {"--fuel": "--energy"}})
    monkeypatch.setattr(aliases, "OPTION_VALUES", {"fly": {"--engine": {"jet": "turbine"}}})
    with pytest.warns(RenamedWarning, match="'--wing' is now '--wings'"):
        assert rename_options(["fly", "--wing", "2"]) == ["fly", "--wings", "2"]
    with pytest.warns(RenamedWarning):
        assert rename_options(["fly", "far", "--fuel=3"]) == ["fly", "far", "--energy=3"]
    for given, expected in (
        (["fly", "--engine", "jet"], ["fly", "--engine", "turbine"]),
        (["fly", "--engine=jet"], ["fly", "--engine=turbine"]),
    ):
        with pytest.warns(RenamedWarning, match="'jet' is now 'turbine'"):
            assert rename_options(given) == expected
    untouched = ["swim", "--wing", "2", "--engine", "jet"]
    assert rename_options(untouched) == untouched


def test_tensors_of_a_checkpoint_are_renamed_by_name_and_by_prefix(monkeypatch) -> None:
    monkeypatch.setattr(aliases, "CHECKPOINT_KEYS", {"mean/": "ema/", "method/a": "method/b"})
    found = rename_tensors({"mean/x.weight": 1, "method/a": 2, "method/ab": 3, "model/mean/x": 4})
    assert found == {"ema/x.weight": 1, "method/b": 2, "method/ab": 3, "model/mean/x": 4}


#: Keys of cells that the version of 2026-11-16 computed, before anything was renamed.
FROZEN = {
    ("scenes-srem",): "65adfff7d27f3978",
    ("flickr8k-dual-srem-plus",): "b8ae6dfc2b1a8221",
    (
        "flickr8k-dual-srem-plus", "training.precision=bf16", "training.cuda_graphs=true",
        "training.max_grad_norm=1.0", "method.min_mismatch_ratio=0.1", "method.rematch_every=2",
        "training.grad_cache_chunk_size=16", "method.clean_prob_power=2.0", "method.min_separation=1.0",
    ): "805589a10b0ab69b",
    (
        "flickr8k-sgr-bicro", "method.min_label=0.4", "training.ema_decay=0.99", "training.float32_steps=0",
    ): "f8b46981bc12ba7b",
}  # fmt: skip


@pytest.mark.parametrize("recipe", FROZEN, ids=lambda recipe: recipe[0])
def test_finished_cells_of_a_grid_keep_their_keys(recipe: tuple[str, ...]) -> None:
    name, *overrides = recipe
    fixed = "training.adaptive_warmup=false"  # the default of that version
    assert cell_key(load_recipe(name, [fixed, *overrides])) == FROZEN[recipe]


def test_hashing_uses_the_old_names_of_all_renamed_keys() -> None:
    new = {"training": {}, "method": {}}
    for key in RECIPE_KEYS.values():
        table, name = key.split(".")
        new[table][name] = 1
    hashed = table_for_hashing({**new, "name": "x"})
    assert {f"{t}.{k}" for t in ("training", "method") for k in hashed[t]} == set(RECIPE_KEYS)
    assert hashed["name"] == "x"


#: Loss of each epoch of the whole runs, by the version that made the stopped ones.
LOSSES = {
    "srem": [2.048566198348999, 2.0178826570510866, 2.547714853286743, 2.3906570434570313],
    "srem-plus": [2.027009963989258, 2.001637601852417, 1.2078759312629699, 1.395043182373047],
}


@pytest.mark.parametrize("method", LOSSES)
def test_a_run_that_an_earlier_version_stopped_goes_on_as_it_would_have(method: str, tmp_path: Path, capsys) -> None:
    """Stopped in the middle of the warm-up's second epoch, with averaged weights."""
    run = tmp_path / "run"
    shutil.copytree(OLD_RUNS / method, run)
    assert main(["eval", str(run)]) == 0
    assert main(["train", "--resume", str(run)]) == 0
    captured = capsys.readouterr()
    assert "is now" not in captured.err  # nobody edits the folder of a run
    assert [row["loss"] for row in RunFolder.open(run).read_metrics()] == pytest.approx(LOSSES[method], rel=1e-4)
    assert main(["compare", str(run), str(OLD_RUNS / method)]) == 0
    assert "training." not in capsys.readouterr().out.splitlines()[0]
