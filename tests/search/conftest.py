"""A really trained run on generated scenes, and searchers over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_recipes import tiny
from sremkit.config.recipes import OptionsDroppedWarning, Recipe, recipe_to_toml
from sremkit.experiment import prepare, train
from sremkit.search.index_folder import build_index
from sremkit.search.searcher import Searcher
from sremkit.training.run_folder import RunFolder

pytest.importorskip("faiss", reason="the extra 'search' is not installed")


def trained(recipe: Recipe, path: Path) -> Path:
    train(prepare(recipe), RunFolder.create(path, config=recipe_to_toml(recipe)))
    return path


def scenes(**changes: object) -> Recipe:
    options = {"data__train_options__num_scenes": 60, "noise__rate": 0.0, "training__epochs": 12} | changes
    return tiny("infonce", model__embed_size=32, model__word_dim=16, **options)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of VSE∞, which has one vector for each item."""
    return trained(scenes(), tmp_path_factory.mktemp("search") / "vse")


@pytest.fixture(scope="session")
def cross_attention_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of SCAN, which has none."""
    with pytest.warns(OptionsDroppedWarning):  # those of VSE∞, which the recipe names
        recipe = scenes(model__name="scan-t2i", data__train_options__num_scenes=24, training__epochs=2)
    return trained(recipe, tmp_path_factory.mktemp("search") / "scan")


@pytest.fixture(scope="session")
def searcher(run: Path) -> Searcher:
    return build_index(run)
