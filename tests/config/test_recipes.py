"""Recipes: every shipped one is complete, explains itself, and can be changed from outside."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

import pytest

from sremkit.config.recipes import (
    load_recipe,
    recipe_files,
    recipe_from_table,
    recipe_headlines,
    recipe_to_toml,
)
from sremkit.config.settings import SettingsError
from sremkit.errors import UnknownNameError, UserError
from sremkit.methods import METHODS, build_method
from sremkit.models import BACKBONES, build_matcher


@pytest.mark.parametrize("name", recipe_files())
def test_a_shipped_recipe_loads_and_its_head_tells_command_cost_and_expectation(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.model["name"] in BACKBONES
    assert recipe.method["name"] in METHODS
    head = recipe_files()[name].read_text().split("\n\n")[0]
    assert f"srem train {name}" in head
    assert "cost:" in head
    assert "expected:" in head
    assert len(recipe_headlines()[name]) > 10


@pytest.mark.parametrize("name", recipe_files())
def test_a_resolved_recipe_written_and_read_again_is_the_same(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe_from_table(tomllib.loads(recipe_to_toml(recipe))) == recipe


def test_overrides_come_last_and_are_checked() -> None:
    recipe = load_recipe("scenes-srem", ["training.epochs=2", "method.margin=0.3", "noise.rate=0"])
    assert recipe.training.epochs == 2
    assert recipe.method["margin"] == 0.3
    assert recipe.noise.rate == 0.0
    with pytest.raises(SettingsError, match=r"did you mean 'training\.epochs'\?$"):
        load_recipe("scenes-srem", ["training.epoch=2"])


def test_a_misspelt_recipe_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"ends in \.toml\); did you mean 'scenes-srem'\?$"):
        load_recipe("scene-srem")


def test_own_files_are_read_and_their_faults_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_recipe(tmp_path / "mine.toml")
    (tmp_path / "mine.toml").write_text("[data\n")
    with pytest.raises(UserError, match=r"mine\.toml is not valid TOML"):
        load_recipe(tmp_path / "mine.toml")
    (tmp_path / "mine.toml").write_text("[data]\nsource = 'scenes'\n[model]\n[method]\nname='srem'\n")
    with pytest.raises(SettingsError, match=r"\[model\] needs a name"):
        load_recipe(tmp_path / "mine.toml")


def test_what_a_recipe_lacks_is_named(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("[data]\nsource = 'scenes'\n")
    with pytest.raises(
        SettingsError, match=r"^the recipe is incomplete: add the table \[model\] and the table \[method\]$"
    ):
        load_recipe(mine)
    mine.write_text("[data]\nwords = true\n[model]\nname='sgr'\n[method]\nname='srem'\n")
    with pytest.raises(SettingsError, match=r"^the table \[data\] is incomplete: add 'data\.source'$"):
        load_recipe(mine)


@pytest.mark.parametrize("name", recipe_files())
def test_a_shipped_recipes_model_and_method_can_be_built(name: str) -> None:
    recipe = load_recipe(name)
    sizes = {"vocab_size": 50, "image_dim": 16, "text_dim": 8}
    takes = inspect.signature(BACKBONES[recipe.model["name"]]).parameters
    options = {key: value for key, value in recipe.model.items() if key != "name"}
    if BACKBONES[recipe.model["name"]].has_tokenizer:  # the user names the folder of a pretrained model
        pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
        options |= BACKBONES[recipe.model["name"]].small_options
    matcher = build_matcher(recipe.model["name"], **{k: v for k, v in sizes.items() if k in takes}, **options)
    assert sum(p.numel() for p in matcher.parameters()) > 0
    build_method(**recipe.method)
