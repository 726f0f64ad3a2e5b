"""Typed settings from plain tables: types checked, unknown keys refused with the nearest known one."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import tomllib
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sremkit.errors import UserError

T = TypeVar("T")


class SettingsError(UserError, ValueError):
    """A setting that does not exist, or of the wrong type; the message says which would be right."""


def from_table(settings: type[T], table: dict[str, Any], *, where: str) -> T:
    """Fill a dataclass from a table, recursing into dataclass fields.

    Args:
        where: names the table in messages, such as "training".
    """
    hints = typing.get_type_hints(settings)
    known = {f.name for f in dataclasses.fields(settings)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        path = f"{where}.{key}" if where else key
        if key not in known:
            raise SettingsError(f"there is no setting '{path}'; {suggestion(key, known)}")
        hint = hints[key]
        if dataclasses.is_dataclass(hint) and isinstance(value, dict):
            values[key] = from_table(typing.cast(type, hint), value, where=path)
        else:
            values[key] = _checked(value, hint, path)
    try:
        return settings(**values)
    except TypeError as cause:
        raise SettingsError(f"the table [{where}] is incomplete: {cause}") from cause


def check_options(build: Callable, options: dict[str, Any], *, where: str) -> None:
    """Refuse options that the constructor `build` does not take."""
    parameters = inspect.signature(build).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return  # it passes them on and is told off by whatever takes them
    for key in options:
        if key not in parameters:
            raise SettingsError(f"there is no setting '{where}.{key}'; {suggestion(key, parameters)}")


def suggestion(key: str, known: Iterable[str]) -> str:
    known = sorted(known)
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean '{near[0]}'?" if near else f"known are: {', '.join(known)}"


def parse_assignment(assignment: str) -> tuple[list[str], Any]:
    """Read `training.epochs=2`: the key's parts and the value, which is TOML or else a plain string."""
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise SettingsError(
            f"'{assignment}' is not an assignment; write --set key=value, such as training.epochs=2"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return key.strip().split("."), value


def assign(table: dict[str, Any], key: list[str], value: Any) -> None:
    """Set a value deep in a table of tables."""
    for part in key[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise SettingsError(f"'{'.'.join(key)}' goes below '{part}', which is a single value")
    table[key[-1]] = value


def _checked(value: Any, hint: Any, path: str) -> Any:
    """The value, if it is of the annotated type; a whole number may stand for a real one."""
    allowed = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for kind in allowed:
        if typing.get_origin(kind) is typing.Literal:
            if value in typing.get_args(kind):
                return value
        elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif kind is int and isinstance(value, bool):
            continue
        elif kind is Any or isinstance(value, typing.get_origin(kind) or kind):
            return value
    raise SettingsError(f"'{path}' must be {_in_words(allowed)}, got {value!r}")


def _in_words(allowed: tuple[Any, ...]) -> str:
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a string",
        dict: "a table",
    }
    described = []
    for kind in allowed:
        if typing.get_origin(kind) is typing.Literal:
            described.append("one of " + ", ".join(repr(choice) for choice in typing.get_args(kind)))
        elif kind is not type(None):
            described.append(words.get(typing.get_origin(kind) or kind, str(kind)))
    return " or ".join(described)
