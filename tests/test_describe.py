"""Every registered component has a description of all its settings, and a printed recipe is a recipe again."""

from __future__ import annotations

from pathlib import Path

import pytest

from sremkit.cli.main import main
from sremkit.config.options import REQUIRED, TakesOptions, options_of
from sremkit.config.recipes import OptionsDroppedWarning, load_recipe, recipe_files
from sremkit.config.settings import check_options
from sremkit.data.formats import FORMATS
from sremkit.describe import SETTINGS, describe, describe_recipe
from sremkit.errors import UnknownNameError
from sremkit.methods import METHODS
from sremkit.models import BACKBONES


@pytest.mark.parametrize("name", sorted({*METHODS, *BACKBONES, *FORMATS, *SETTINGS}))
def test_every_setting_of_a_component_has_a_type_and_a_meaning(name: str) -> None:
    for found in describe(name):
        assert found.text, found.kind
        for option in found.options:
            assert option.meaning, f"{found.kind} {name}: {option.name}"
            assert option.type, f"{found.kind} {name}: {option.name}"


@pytest.mark.parametrize("name", sorted(recipe_files()))
def test_a_printed_recipe_is_the_same_recipe_with_its_defaults_written_out(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    path = tmp_path / f"{name}.toml"
    path.write_text(describe_recipe(recipe), encoding="utf-8")
    again = load_recipe(path)
    assert (again.data, again.noise, again.training) == (recipe.data, recipe.noise, recipe.training)
    for table, component in (("model", BACKBONES[recipe.model["name"]]), ("method", METHODS[recipe.method["name"]])):
        written, given = getattr(again, table), getattr(recipe, table)
        assert written.items() >= given.items()
        defaults = {option.name: option.default for option in options_of(component)}
        added = {key: value for key, value in written.items() if key not in given}
        assert added.items() <= defaults.items()
        assert not {"image_dim", "text_dim", "vocab_size"} & added.keys()  # these follow from the data
    assert describe_recipe(again) == path.read_text(encoding="utf-8")


def test_options_are_read_from_the_signature_and_the_docstring() -> None:
    class Base(TakesOptions):
        """A base.

        Args:
            width: of everything,
                in pixels.
        """

        def __init__(self, *, width: int) -> None:
            self.width = width

    class Child(Base):
        """A child.

        Args:
            first, second: either of two.
        """

        def __init__(self, *, first: float = 1.5, second: str | None = None, **options: int) -> None:
            super().__init__(**options)

    width, first, second = options_of(Child)
    assert width == ("width", "int", REQUIRED, "of everything, in pixels.")
    assert first == ("first", "float", 1.5, "either of two.")
    assert second == ("second", "str", None, "either of two.")
    assert Child(width=3, first=2.0).width == 3


def test_options_that_no_base_takes_stay_open() -> None:
    class Open(TakesOptions):
        def __init__(self, *, first: int = 1, **options: int) -> None:
            self.options = options

    assert [option.name for option in options_of(Open)] == ["first"]
    check_options(Open, {"anything": 2}, where="model")


def test_a_name_is_found_whatever_its_kind() -> None:
    assert [found.kind for found in describe("features")] == ["format"]
    assert [found.kind for found in describe("scenes-srem")] == ["recipe"]


def test_an_unknown_name_suggests_a_near_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'srem-plus'"):
        describe("srem-pluss")


def test_the_command_prints_settings_with_defaults_and_meanings(capsys) -> None:
    assert main(["describe", "sgr"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "reads images as regions, texts as words" in printed
    assert "model.num_steps = 3 int steps of reasoning, each with its own weights." in printed
    assert "model.vocab_size (required) int" in printed
    assert main(["describe", "training"]) == 0
    assert "training.patience (none) int stop after" in " ".join(capsys.readouterr().out.split())


def test_another_model_or_method_begins_with_its_own_defaults() -> None:
    """Before, options of the recipe's model stayed, were refused, and `--set` could not remove them."""
    with pytest.warns(OptionsDroppedWarning, match=r"'vse-infty'.*model.embed_size=128, model.word_dim=64"):
        recipe = load_recipe("scenes-srem", ["model.embed_size=32", "model.name=sgr"])
    assert recipe.model == {"name": "sgr", "embed_size": 32}
    with pytest.warns(OptionsDroppedWarning, match="srem describe rcl"):
        recipe = load_recipe("flickr8k-dual-srem", ["method.name=rcl", "method.temperature=0.5"])
    assert recipe.method == {"name": "rcl", "temperature": 0.5}


def test_naming_the_same_model_keeps_its_options(recwarn: pytest.WarningsRecorder) -> None:
    assert load_recipe("scenes-srem", ["model.name=vse-infty"]).model == load_recipe("scenes-srem").model
    assert not recwarn.list
