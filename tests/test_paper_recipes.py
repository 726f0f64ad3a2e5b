"""The nine paper recipes on small generated collections: layouts are read, and all of them start by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from sremkit.config.recipes import load_recipe, recipe_files
from sremkit.data.generated.concepts import collection_like, write_collection
from sremkit.experiment import make_trainer, prepare
from sremkit.methods import METHODS, build_method
from sremkit.training.reporters import HistoryReporter
from sremkit.training.state import Schedule
from sremkit.training.warmup import WarmupControl

COLLECTIONS = {"f30k": (16, 145_000), "coco": (16, 566_435), "cc152k": (64, 150_000)}  # images here, pairs in full
RECIPES = [f"{data}-{backbone}-srem" for data in COLLECTIONS for backbone in ("saf", "sgr", "sgraf")]
SMALL = [
    "training.batch_size=32", "training.device=cpu", "training.workers=0", "training.threads=1", "training.epochs=1",
    "training.warmup_epochs=1", "data.min_count=1", "model.embed_size=8", "model.word_dim=4", "model.sim_dim=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three collections below one folder, under the names that the recipes expect."""
    root = tmp_path_factory.mktemp("generated")
    for name, (images, _) in COLLECTIONS.items():
        collection = collection_like(name, images=images, num_regions=3, dim=8, num_concepts=12, num_topics=3)
        write_collection(collection, root / f"{name}_precomp")
    return root


def test_these_are_the_paper_recipes() -> None:
    assert {name for name in recipe_files() if name.split("-")[0] in COLLECTIONS} == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_it_trains_on_a_generated_collection(name: str, collections: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SREMKIT_DATA", str(collections))
    recipe = load_recipe(name, SMALL)
    prepared = prepare(recipe)
    images = COLLECTIONS[name.split("-")[0]][0]
    assert prepared.train.num_images == images
    assert len(prepared.train) == images * (1 if name.startswith("cc152k") else 5)
    history: list[dict] = []
    make_trainer(prepared, HistoryReporter(history)).run()
    assert [row["epoch"] for row in history] == [0, 1]
    assert all(row["loss"] == row["loss"] and row["val/rsum"] >= 0 for row in history)
    assert history[0]["warmup"]


@pytest.mark.parametrize("name", RECIPES)
def test_its_warm_up_ends_when_the_model_is_ready_and_a_collapse_is_noticed_early(name: str) -> None:
    recipe = load_recipe(name)
    method = METHODS[recipe.method["name"]]
    assert recipe.training.adaptive_warmup
    assert method.monitors_warmup
    assert method.returns_to_warmup
    assert load_recipe(name, ["training.adaptive_warmup=false"]).training.warmup_epochs == 5  # the paper's letter
    control = WarmupControl(recipe.training, Schedule(recipe.training), build_method("srem"))
    steps = COLLECTIONS[name.split("-")[0]][1] // recipe.training.batch_size
    assert not any(control.is_check_due(step, steps) for step in range(1, steps))  # not during the warm-up itself
    control.checkpoint = {}
    first = next(step for step in range(1, steps) if control.is_check_due(step, steps))
    assert first <= 0.05 * steps
