"""Every setting of a method, backbone, format or settings table, and of a recipe: type, default and meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sremkit.config.options import REQUIRED, Option, options_of
from sremkit.config.recipes import (
    TABLES,
    DataSettings,
    NoiseSettings,
    Recipe,
    TrainingSettings,
    load_recipe,
    recipe_headlines,
    to_toml,
)
from sremkit.config.settings import suggestion
from sremkit.data.formats import FORMATS, format_options
from sremkit.errors import UnknownNameError
from sremkit.methods import METHODS
from sremkit.models import BACKBONES
from sremkit.models.matcher import FROM_DATA

SETTINGS: dict[str, Any] = {"data": DataSettings, "noise": NoiseSettings, "training": TrainingSettings}


class Description(NamedTuple):
    """A named component and its settings."""

    kind: str  # "method", "backbone", "format", "recipe" or "settings"
    name: str
    text: str  # what it is, in one sentence
    facts: list[str]
    prefix: str  # of its settings in a recipe, such as "method."
    options: Sequence[Option]


def describe(name: str) -> list[Description]:
    """Everything that has this name: a method and a recipe may share it."""
    found = []
    if name in METHODS:
        method = METHODS[name]
        facts = [
            f"networks: {method.networks}",
            f"divides the pairs into clean and noisy ones: {_yes(method.selects_pairs)}",
            f"has a warm-up: {_yes(method.has_warmup)}",
            f"needs some correct pairs (data.trusted_images): {_yes(method.needs_trusted)}",
        ]
        found.append(Description("method", name, METHODS.describe(name), facts, "method.", options_of(method)))
    if name in BACKBONES:
        backbone = BACKBONES[name]
        facts = [f"reads images as {backbone.image_input}, texts as {backbone.text_input}"]
        found.append(Description("backbone", name, BACKBONES.describe(name), facts, "model.", options_of(backbone)))
    if name in FORMATS:
        options = list(format_options(name).values())
        found.append(Description("format", name, FORMATS.describe(name), [], "data.options.", options))
    if name in SETTINGS:
        text = (SETTINGS[name].__doc__ or "").split("\n")[0]
        found.append(Description("settings", name, text, [], f"{name}.", options_of(SETTINGS[name])))
    headlines = recipe_headlines()
    if name in headlines:
        recipe = load_recipe(name)
        facts = [f"method: {recipe.method['name']}", f"backbone: {recipe.model['name']}", f"data: {recipe.data.source}"]
        found.append(Description("recipe", name, headlines[name], facts, "", []))
    if not found:
        raise UnknownNameError(
            f"there is no method, backbone, format, recipe or settings table called '{name}'; "
            f"{suggestion(name, known_names())}"
        )
    return found


def known_names() -> list[str]:
    """Everything that `describe` describes."""
    return [*METHODS, *BACKBONES, *FORMATS, *SETTINGS, *recipe_headlines()]


def describe_recipe(recipe: Recipe) -> str:
    """The resolved recipe as TOML, with every setting of its model, method and training and the meaning of each."""
    tables = {name: options_of(settings) for name, settings in SETTINGS.items()}
    tables["model"] = [
        option._replace(default=REQUIRED) if option.name in FROM_DATA else option
        for option in options_of(BACKBONES[recipe.model["name"]])
    ]
    tables["method"] = options_of(METHODS[recipe.method["name"]])
    lines = [f"name = {to_toml(recipe.name)}"]
    for table in TABLES:
        lines += ["", f"[{table}]"]
        entries = recipe.entries(table)
        if "name" in entries:
            lines.append(f"name = {to_toml(entries['name'])}")
        for option in tables[table]:
            value = entries.get(option.name, option.default)
            is_set = value is not None and value is not REQUIRED
            setting = f"{option.name} = {to_toml(value)}" if is_set else f"# {option.name} ="
            lines.append(f"{setting}  # {option.meaning}" if option.meaning else setting)
    return "\n".join(lines) + "\n"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
