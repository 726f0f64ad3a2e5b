"""The options of a component, with type, default and meaning, read from its signature and its docstring.

A class whose constructor passes `**options` on states to which class: to its base class, or to the one named by the
class keyword `options_of`. Its signature then shows these options as well.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import docstring_parser

REQUIRED = inspect.Parameter.empty


class Option(NamedTuple):
    """One keyword of a constructor, or one field of a settings dataclass."""

    name: str
    type: str  # as annotated
    default: Any  # REQUIRED if there is none
    meaning: str  # from the docstring; empty if it says nothing


class TakesOptions:
    """Base of classes whose constructors may pass `**options` on."""

    _options_of: ClassVar[type | None] = None

    def __init_subclass__(cls, *, options_of: type | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._options_of = options_of
        if "__init__" in vars(cls):
            _add_inherited(cls.__init__, options_of or cls.__mro__[1])


def options_of(component: Callable[..., Any], *, also_documented_in: Callable[..., Any] | None = None) -> list[Option]:
    """The options of a class or a function, in the order of its signature.

    Args:
        also_documented_in: its docstring is used for options that the component's own does not mention.
    """
    hints = type_hints(component)
    meanings = {**_meanings(also_documented_in), **_meanings(component)}
    factories = {f.name: f.default_factory for f in getattr(component, "__dataclass_fields__", {}).values()}
    options = []
    for p in inspect.signature(component).parameters.values():
        factory = factories.get(p.name, dataclasses.MISSING)
        default = p.default if factory is dataclasses.MISSING else factory()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            type_name = _type_name(hints.get(p.name, p.annotation))
            options.append(Option(p.name, type_name, default, meanings.get(p.name, "")))
    return options


def type_hints(component: Callable[..., Any]) -> dict[str, Any]:
    """The resolved annotations of a constructor or a function; empty if only type checkers can resolve them."""
    try:
        # The annotations of a dataclass are those of its class, each in the module where it was written.
        is_plain_class = inspect.isclass(component) and not dataclasses.is_dataclass(component)
        return typing.get_type_hints(component.__init__ if is_plain_class else component)
    except NameError:
        return {}


def _add_inherited(init: Any, base: type) -> None:
    """Put the options of `base`, to which the constructor `init` passes `**options`, into its signature.

    A base without named options leaves the signature as it is: the options go somewhere else.
    """
    parameters = inspect.signature(init).parameters
    own = {name: p for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    of_base = inspect.signature(base).parameters.values()
    inherited = {p.name: p for p in of_base if p.name not in own and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if len(own) == len(parameters) or not inherited:
        return
    self, *options = own.values()
    init.__signature__ = inspect.Signature([self, *inherited.values(), *options])
    hints = {name: hint for name, hint in type_hints(base).items() if name in inherited}
    init.__annotations__ = {**hints, **init.__annotations__}


def _meanings(component: Callable[..., Any] | None) -> dict[str, str]:
    """What the docstrings of a component, and of the classes that its options come from, say of each argument."""
    classes = inspect.getmro(component) if inspect.isclass(component) else (component,)
    sources = [source for c in classes for source in (c, getattr(c, "_options_of", None)) if source is not None]
    meanings: dict[str, str] = {}
    for source in sources:
        for documented in docstring_parser.parse(source.__doc__ or "").params:
            text = " ".join((documented.description or "").split())
            for name in documented.arg_name.split(","):
                meanings.setdefault(name.strip(), text)
    return meanings


def _type_name(hint: Any) -> str:
    if hint is REQUIRED:
        return ""
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_type_name(kind) for kind in typing.get_args(hint) if kind is not type(None))
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
