"""Named components. A file that registers itself is the whole change it takes to add one."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from sremkit.errors import UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """Components of one kind, found by importing every module of one package."""

    def __init__(self, kind: str, *, package: str) -> None:
        self.kind = kind
        self.package = package
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
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        self._discovered = True
