"""Recipes for a handful of generated scenes, trained in a second."""

from __future__ import annotations

from sremkit.config.recipes import Recipe, load_recipe

TINY = [
    "data.train_options.num_scenes=12", "data.options.num_scenes=8", "training.epochs=1",
    "training.warmup_epochs=1", "training.batch_size=20", "model.embed_size=8", "model.word_dim=8",
]  # fmt: skip
AS_OPTIONS = [part for setting in TINY for part in ("--set", setting)]


def tiny(method: str = "srem", **changes: object) -> Recipe:
    """The recipe of a method on scenes; `training__seed=1` sets `training.seed`."""
    settings = (f"{key.replace('__', '.')}={value}" for key, value in changes.items())
    return load_recipe(f"scenes-{method}", [*TINY, *settings])
