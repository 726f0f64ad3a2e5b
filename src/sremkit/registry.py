"""Registries of named components: a file that registers itself, or an entry point of another package, adds one.

A package registers a method, a backbone or a format in its `pyproject.toml`, without touching this one:

    [project.entry-points."sremkit.methods"]
    my-method = "my_package:MyMethod"
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Generic, TypeVar, cast

from sremkit.errors import UnknownNameError, UserNotice

T = TypeVar("T")


class PluginWarning(UserNotice):
    """A component of another package that could not be loaded."""


class Registry(Generic[T]):
    """Components of one kind, found in the modules of some packages and in entry points.

    Args:
        kind: what a component is called in messages.
        packages: all of their modules are imported.
        group: of entry points, which name a component or a module that registers some; None for no plugins.
        accepts: whether an object of a plugin is such a component; by default any class is.
    """

    def __init__(
        self,
        kind: str,
        *,
        packages: tuple[str, ...],
        group: str | None = None,
        accepts: Callable[[type], bool] = lambda component: True,
    ) -> None:
        self.kind = kind
        self.packages = packages
        self.group = group
        self.accepts = accepts
        self._entries: dict[str, T] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that enters a component under `name`."""

        def enter(component: T) -> T:
            if name in self._entries:
                raise ValueError(f"the {self.kind} '{name}' is registered twice")
            self._entries[name] = component
            return component

        return enter

    def __getitem__(self, name: str) -> T:
        self._discover()
        if name not in self._entries:
            near = difflib.get_close_matches(name, self._entries, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(self)}"
            raise UnknownNameError(f"there is no {self.kind} called '{name}'; {hint}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        self._discover()
        return name in self._entries

    def describe(self, name: str) -> str:
        """The first line of the component's docstring."""
        return (self[name].__doc__ or "").strip().split("\n")[0]

    def _discover(self) -> None:
        if self._discovered:
            return
        for name in self.packages:
            for module in pkgutil.iter_modules(importlib.import_module(name).__path__):
                importlib.import_module(f"{name}.{module.name}")
        self._discovered = True
        for entry_point in () if self.group is None else entry_points(group=self.group):
            self._load(entry_point)

    def _load(self, entry_point: EntryPoint) -> None:
        """Register a plugin; one that fails is a warning, because everything else still works."""
        try:
            component = entry_point.load()
            registered = any(component is entry for entry in self._entries.values())
            if not isinstance(component, ModuleType) and not registered:
                if not isinstance(component, type) or not self.accepts(component):
                    raise TypeError(f"{entry_point.value} is no {self.kind}")
                self.register(entry_point.name)(cast(T, component))
        except (Exception, SystemExit) as problem:  # a module that ends the program is no reason to end ours
            package = entry_point.dist.name if entry_point.dist is not None else entry_point.value
            warnings.warn(
                f"the {self.kind} '{entry_point.name}' of the package '{package}' is left out, because it could not "
                f"be loaded: {type(problem).__name__}: {problem}",
                PluginWarning,
                stacklevel=2,
            )
