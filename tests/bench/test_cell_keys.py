"""Keys of cells that were finished before settings were renamed: a grid must find them again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sremkit.bench.grid import cell_key
from sremkit.bench.methods import method_recipe
from sremkit.config.recipes import load_recipe

#: Computed on 2026-11-16, before the renaming. A recipe whose values change gets another key here, one that is only
#: renamed does not.
FIXED = "training.adaptive_warmup=false"  # the default at that time; matters to methods that monitor their warm-up
FLOAT32 = "training.precision=float32"  # too; matters on a machine with a GPU
FROZEN = json.loads((Path(__file__).parent / "cell_keys.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(FROZEN))
def test_the_key_of_a_shipped_recipe_is_that_of_its_finished_cells(name: str) -> None:
    assert cell_key(load_recipe(name, [FIXED, FLOAT32])) == FROZEN[name]


@pytest.mark.parametrize(
    ("name", "overrides", "key"),
    [
        ("flickr8k-dual-srem-plus", ["noise.rate=0.6", "training.seed=2"], "2d98c2619cd98e14"),
        (
            "flickr8k-sgr-srem-plus",
            ["training.precision=bf16", "training.cuda_graphs=true", "training.device=cuda"],
            "26a0528d14f698a6",
        ),
        ("scenes-mscn", ["training.max_grad_norm=1.5", "training.ema_decay=0.99"], "e9f1fbcc418bb364"),
        ("flickr8k-dual-srem-plus", ["method.rematch_top_k=3", "method.rematch_every=2"], "457e23026c9c5d38"),
    ],
)
def test_the_key_of_a_changed_recipe_is_that_of_its_finished_cells(name: str, overrides: list[str], key: str) -> None:
    assert cell_key(load_recipe(name, [FIXED, FLOAT32, *overrides])) == key


@pytest.mark.parametrize(("method", "key"), [("rcl", "b6201674ad8f4faf"), ("mscn", "c5fcebff4375d846")])
def test_the_key_of_a_method_without_a_recipe_is_that_of_its_finished_cells(method: str, key: str) -> None:
    assert cell_key(method_recipe("f30k", "sgr", method, ["noise.rate=0.2", FLOAT32]).recipe) == key


def test_an_adaptive_warm_up_changes_the_key_of_methods_that_monitor_it() -> None:
    for name, changes in (("scenes-srem", True), ("scenes-srem-plus", True), ("scenes-infonce", False)):
        keys = {cell_key(load_recipe(name, [f"training.adaptive_warmup={value}"])) for value in ("true", "false")}
        assert len(keys) == 1 + changes, name
