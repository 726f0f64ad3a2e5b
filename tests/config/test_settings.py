"""Settings are typed: wrong keys and wrong types are told, with what would be right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from sremkit.config.settings import SettingsError, assign, check_options, from_table, parse_assignment


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    kind: Literal["soft", "hard"] = "soft"
    limit: int | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    options: dict[str, Any] = field(default_factory=dict)
    flag: bool = False


def test_tables_become_dataclasses() -> None:
    table = {"name": "x", "inner": {"rate": 1, "limit": 3}, "options": {"anything": [1]}}
    outer = from_table(Outer, table, where="")
    assert outer == Outer("x", Inner(rate=1.0, limit=3), {"anything": [1]})
    assert isinstance(outer.inner.rate, float)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"name": "x", "inner": {"rat": 1}},
            r"there is no setting 'inner\.rat'; did you mean 'inner\.rate'\?",
        ),
        ({"name": "x", "zzz": 1}, "there is no setting 'zzz'; known are: flag, inner, name, options"),
        ({"name": 3}, "'name' must be a string, got 3"),
        ({"name": "x", "inner": {"rate": "high"}}, r"'inner\.rate' must be a number, got 'high'"),
        ({"name": "x", "inner": {"rate": True}}, "must be a number, got True"),
        ({"name": "x", "inner": {"limit": 2.5}}, "must be a whole number, got 2.5"),
        ({"name": "x", "inner": {"kind": "firm"}}, "must be one of 'soft', 'hard', got 'firm'"),
        ({"name": "x", "flag": 1}, "'flag' must be true or false, got 1"),
        ({"inner": {}}, "^the recipe is incomplete: add 'name'$"),
    ],
)
def test_mistakes_are_told(table: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        from_table(Outer, table, where="")


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("training.epochs=2", ["training", "epochs"], 2),
        ("a=1e-3", ["a"], 0.001),
        ("a=true", ["a"], True),
        ("a.b.c=[1, 2]", ["a", "b", "c"], [1, 2]),
        ('a="x y"', ["a"], "x y"),
        ("a=plain words", ["a"], "plain words"),
        ("a=b=c", ["a"], "b=c"),
    ],
)
def test_assignments_are_read(text: str, key: list[str], value: object) -> None:
    assert parse_assignment(text) == (key, value)


@pytest.mark.parametrize("text", ["epochs", "=3"])
def test_what_is_no_assignment_is_told(text: str) -> None:
    with pytest.raises(SettingsError, match="is not an assignment"):
        parse_assignment(text)


def test_assigning_goes_deep_but_not_through_values() -> None:
    table: dict = {"a": {"b": 1}}
    assign(table, ["a", "c", "d"], 2)
    assert table == {"a": {"b": 1, "c": {"d": 2}}}
    with pytest.raises(SettingsError, match="goes below 'b', which is a single value"):
        assign(table, ["a", "b", "x"], 3)


def test_options_are_checked_against_a_constructor() -> None:
    def build(*, width: int, depth: int = 2) -> None: ...

    check_options(build, {"width": 3}, where="model")
    with pytest.raises(SettingsError, match=r"no setting 'model\.widht'; did you mean 'model\.width'\?"):
        check_options(build, {"widht": 3}, where="model")
