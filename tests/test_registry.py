"""Names find their components; wrong names are answered with the nearest right one."""

from __future__ import annotations

import pytest

from sremkit.errors import UnknownNameError, UserError
from sremkit.registry import Registry


def make_registry() -> Registry:
    registry: Registry = Registry("fruit", packages=("sremkit.cli",))  # any package without fruit

    @registry.register("apple")
    class Apple:
        """Round and red.

        And more that is not a headline.
        """

    return registry


def test_a_component_is_found_and_described() -> None:
    registry = make_registry()
    assert registry["apple"].__name__ == "Apple"
    assert registry.describe("apple") == "Round and red."
    assert list(registry) == ["apple"]
    assert "apple" in registry
    assert "pear" not in registry


def test_a_near_miss_is_answered_with_the_right_name() -> None:
    with pytest.raises(UnknownNameError) as problem:
        make_registry()["aple"]
    assert str(problem.value) == "there is no fruit called 'aple'; did you mean 'apple'?"
    assert isinstance(problem.value, UserError)


def test_a_far_miss_is_answered_with_all_names() -> None:
    with pytest.raises(UnknownNameError, match="known: apple"):
        make_registry()["xyz"]


def test_a_name_cannot_be_taken_twice() -> None:
    registry = make_registry()
    with pytest.raises(ValueError, match="'apple' is registered twice"):
        registry.register("apple")(object)
