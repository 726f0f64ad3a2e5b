"""Typed settings from plain tables: types checked, unknown keys refused with the nearest known one."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import inspect
import math
import numbers
import tomllib
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sremkit.config.aliases import rename_key
from sremkit.config.options import type_hints
from sremkit.errors import UserError

T = TypeVar("T")

REMOVED: Any = object()  # the value of an assignment without a value
MAX_SIZE = 1_000_000  # of a whole number among the options of a model or a method


class SettingsError(UserError, ValueError):
    """A setting that does not exist, of the wrong type or out of range; the message says what would be right."""


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a setting may take; a bound that is None does not bind."""

    least: float | None = None
    above: float | None = None  # as `least`, but itself refused
    most: float | None = None
    below: float | None = None  # as `most`, but itself refused
    words: str = ""  # what it is, where bounds alone say too little
    limit: int | None = None  # more than any machine can do; not mentioned unless it is exceeded

    def __contains__(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
            and not self.exceeds_limit(value)
        )

    def exceeds_limit(self, value: float) -> bool:
        return self.limit is not None and value > self.limit

    def __str__(self) -> str:
        bounds = {"at least": self.least, "more than": self.above, "at most": self.most, "less than": self.below}
        named = (f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None)
        return self.words or " and ".join(named)


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
            raise SettingsError(f"there is no setting '{path}'; {suggestion(key, known, where=where)}")
        hint = hints[key]
        if dataclasses.is_dataclass(hint) and isinstance(value, dict):
            values[key] = from_table(typing.cast(type, hint), value, where=path)
        else:
            values[key] = _checked(value, hint, path)
    _refuse_missing(settings, values, hints, where)
    return settings(**values)


def ranges_of(settings: type) -> dict[str, Range]:
    """The ranges of a dataclass: those of its fields that are annotated as `Annotated[int, Range(...)]`."""
    hints = typing.get_type_hints(settings, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if typing.get_origin(hint) is typing.Annotated}


def check_ranges(settings: Any, *, where: str) -> None:
    """Refuse a dataclass whose numbers are of another type or out of range; None passes where it is allowed."""
    hints = typing.get_type_hints(type(settings))
    for name, allowed in ranges_of(type(settings)).items():
        value = _checked(getattr(settings, name), hints[name], f"{where}.{name}")
        if value is not None and value not in allowed:
            words = f"at most {allowed.limit:,}" if allowed.exceeds_limit(value) else allowed
            raise SettingsError(f"'{where}.{name}' must be {words}, got {_shown(value)}")


def check_options(build: Callable[..., Any], options: dict[str, Any], *, where: str) -> None:
    """Refuse options that the constructor `build` does not take, or takes as another simple type."""
    parameters = inspect.signature(build).parameters
    # A constructor that passes options on leaves it to whatever takes them to tell those off.
    passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    hints = type_hints(build)
    for key, value in options.items():
        if key not in parameters and not passes_on:
            known = suggestion(key, parameters, where=where)
            raise SettingsError(f"there is no setting '{where}.{key}'; {known}")
        if key in parameters and _is_simple(hints.get(key)):
            _checked(value, hints[key], f"{where}.{key}")
    check_sizes(options, where=where)


def check_sizes(options: dict[str, Any], *, where: str) -> None:
    """Refuse NaN, and whole numbers that are larger than any size or count of a component."""
    for key, value in options.items():
        if isinstance(value, int) and abs(value) > MAX_SIZE:
            raise SettingsError(f"'{where}.{key}' must be at most {MAX_SIZE:,}, got {_shown(value)}")
        if isinstance(value, float) and math.isnan(value):
            raise SettingsError(f"'{where}.{key}' must be a number, got nan")


def refuse_dates(value: Any, where: str = "") -> None:
    """Refuse the dates and times that TOML knows, wherever they stand; no setting is one."""
    if isinstance(value, dict):
        for key, entry in value.items():
            refuse_dates(entry, f"{where}.{key}" if where else key)
    elif isinstance(value, list):
        for entry in value:
            refuse_dates(entry, where)
    elif isinstance(value, datetime.date | datetime.time):
        raise SettingsError(f"'{where}' is the date or time {value}, which no setting is; write text in quotes")


def suggestion(key: str, known: Iterable[str], *, where: str = "") -> str:
    """What was meant, as a question, or else all that there is; `where` is the table that the key is in."""
    known = sorted(known)
    near = difflib.get_close_matches(key, known, n=1)
    if not near:
        return f"known are: {', '.join(known)}"
    return f"did you mean '{where}.{near[0]}'?" if where else f"did you mean '{near[0]}'?"


def parse_assignment(assignment: str) -> tuple[list[str], Any]:
    """Read `training.epochs=2`: the parts of the key, under its present name, and the value: TOML or a string.

    Without a value, as in `model.dropout=`, the value is `REMOVED`.
    """
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"'{assignment}' is not an assignment; write --set key=value, such as training.epochs=2")
    if not text.strip():
        return rename_key(key.strip()).split("."), REMOVED
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, or a number of thousands of digits
        value = text.strip()
    if isinstance(value, str) and "\0" in value:
        raise SettingsError(f"the value of '{key.strip()}' has a NUL character, which no name or path can have")
    return rename_key(key.strip()).split("."), value


def assign(table: dict[str, Any], key: list[str], value: Any) -> None:
    """Set a value deep in a table of tables; `REMOVED` takes a setting away."""
    for part in key[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise SettingsError(f"'{'.'.join(key)}' goes below '{part}', which is a single value")
    if value is not REMOVED:
        table[key[-1]] = value
    elif key[-1] in table:
        del table[key[-1]]
    else:
        raise SettingsError(f"'{'.'.join(key)}' is not set in the recipe, so it cannot be taken back; give it a value")


def _refuse_missing(settings: type, given: Iterable[str], hints: dict[str, Any], where: str) -> None:
    """Say which settings without a default were left out; those that are tables as tables."""
    missing = []
    for field in dataclasses.fields(settings):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.init and field.name not in given:
            path = f"{where}.{field.name}" if where else field.name
            hint = hints[field.name]
            is_table = dataclasses.is_dataclass(hint) or (typing.get_origin(hint) or hint) is dict
            missing.append(f"the table [{path}]" if is_table else f"'{path}'")
    if missing:
        whole = f"the table [{where}]" if where else "the recipe"
        raise SettingsError(f"{whole} is incomplete: add {' and '.join(missing)}")


def _is_simple(hint: Any) -> bool:
    """Whether values of this type are written in a recipe as they are: numbers, strings, true and false."""
    simple = (int, float, bool, str, type(None))
    return all(kind in simple or typing.get_origin(kind) is typing.Literal for kind in _alternatives(hint))


def _alternatives(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _checked(value: Any, hint: Any, path: str) -> Any:
    """The value, if it is of the annotated type; a whole number may stand for a real one."""
    allowed = _alternatives(hint)
    for kind in allowed:
        if typing.get_origin(kind) is typing.Literal:
            if value in typing.get_args(kind):
                return value
        elif kind is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                continue
        elif kind is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return int(value)
        elif kind is int:
            continue
        elif kind is Any or isinstance(value, typing.get_origin(kind) or kind):
            return value
    raise SettingsError(f"'{path}' must be {_in_words(allowed)}, got {_shown(value)}")


def _shown(value: Any) -> str:
    """The value as it was given, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text):,} characters)"


def _in_words(allowed: tuple[Any, ...]) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", dict: "a table"}
    described = []
    for kind in allowed:
        if typing.get_origin(kind) is typing.Literal:
            described.append("one of " + ", ".join(repr(choice) for choice in typing.get_args(kind)))
        elif kind is not type(None):
            described.append(words.get(typing.get_origin(kind) or kind, str(kind)))
    return " or ".join(described)
