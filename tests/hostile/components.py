"""Components of other packages that cannot be used, and frames and datasets that are none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from unittest import mock

from hostile.harness import Case, Result
from sremkit.data.formats import FORMATS
from sremkit.errors import UserError
from sremkit.methods import METHODS
from sremkit.models import BACKBONES
from sremkit.registry import Registry


def cases() -> Iterator[Case]:
    yield from _plugins()
    yield from _frames()


@dataclass(frozen=True, eq=False)
class PluginCase(Case):
    """A row with a package installed whose entry point is hostile; everything else must still work.

    Args:
        registry: that the entry point is for.
        value: of the entry point, "module:object"; `source` is the text of the module `hostile_plugin`.
    """

    registry: Registry[Any] = METHODS
    value: str = "hostile_plugin"
    source: str = ""

    def attempt(self) -> str:
        entry = EntryPoint("hostile", self.value, self.registry.group or "")
        others = list(self.registry)  # found before the hostile one
        entries = dict(self.registry._entries)
        with mock.patch("sremkit.registry.entry_points", lambda group: [entry] if group == entry.group else []):
            self.registry._discovered = False
            try:
                return super().attempt() or ("" if set(others) <= set(self.registry) else "a component is gone")
            finally:
                self.registry._entries.clear()
                self.registry._entries.update(entries)
                self.registry._discovered = True
                sys.modules.pop("hostile_plugin", None)


def _plugin(source: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "hostile_plugin.py").write_text(source, encoding="utf-8")
        sys.path.insert(0, str(folder))  # removed by `_forget`, after the command

    return write


def _forget(folder: Path) -> None:
    sys.path.remove(str(folder))


def _plugins() -> Iterator[Case]:
    kinds: Sequence[tuple[str, Registry[Any]]] = (("method", METHODS), ("backbone", BACKBONES), ("format", FORMATS))
    sources = {
        "is not there": ("hostile_plugin_that_is_not_there:X", "", "ModuleNotFoundError"),
        "has no such object": ("hostile_plugin:X", "", "AttributeError"),
        "is not Python": ("hostile_plugin:X", "class X(", "SyntaxError"),
        "raises when it is imported": ("hostile_plugin:X", "1 / 0", "ZeroDivisionError"),
        "ends the program": ("hostile_plugin:X", "import sys; sys.exit(3)", "SystemExit"),
        "imports what is missing": ("hostile_plugin:X", "import nowhere_at_all", "No module named 'nowhere_at_all'"),
        "is a number": ("hostile_plugin:X", "X = 3", "TypeError: hostile_plugin:X is no"),
        "is a function": ("hostile_plugin:X", "def X(): pass", "TypeError: hostile_plugin:X is no"),
        "is another class": ("hostile_plugin:X", "class X: pass", "TypeError: hostile_plugin:X is no"),
    }
    for kind, registry in kinds:
        for name, (value, source, says) in sources.items():
            says = rf"the {kind} 'hostile' of the package '.*' is left out, because it could not be loaded: .*{says}"
            yield PluginCase(
                f"a {kind} of a plugin {name}", ("list",), says, _plugin(source), 0, _forget, registry, value
            )
    twice = "from sremkit.methods import METHODS, Method\nclass X(Method): pass\nMETHODS.register('srem')(X)"
    says = "is left out, .* the method 'srem' is registered twice"
    yield PluginCase("a plugin takes a name of ours", ("list",), says, _plugin(twice), 0, _forget)


@dataclass(frozen=True, eq=False)
class FrameCase(Case):
    """A row for Python: `open` makes an audit of a data frame or dataset, which must be refused by a sentence."""

    open: Callable[[], object] = object

    def attempt(self) -> str:
        try:
            self.open()
        except UserError as sentence:
            return Result(2, f"srem: {sentence}").problem(self)
        except Exception as error:
            return f"traceback: {type(error).__name__}: {error}"
        return "there was no sentence"


def _frames() -> Iterator[Case]:
    with contextlib.suppress(ImportError):
        yield from _data_frames()
    with contextlib.suppress(ImportError):
        yield from _datasets()


def _data_frames() -> Iterator[Case]:
    import pandas

    from sremkit.audit.audit import Audit

    no_rows = "no pairs|no rows|none|empty"
    frames: dict[str, tuple[Callable[[], Any], str]] = {
        "no columns": (lambda: pandas.DataFrame(), "column"),
        "no rows": (lambda: pandas.DataFrame({"image": [], "caption": []}), no_rows),
        "numbers for captions": (lambda: pandas.DataFrame({"image": ["a.png"], "caption": [3]}), "caption|image|pairs"),
        "lists for captions": (lambda: pandas.DataFrame({"image": ["a.png"], "caption": [["x"]]}), "caption|image"),
        "bytes for captions": (lambda: pandas.DataFrame({"image": ["a.png"], "caption": [b"\xff"]}), "caption|image"),
        "all captions missing": (lambda: pandas.DataFrame({"image": ["a.png"], "caption": [None]}), "caption|image"),
        "columns of one name": (
            lambda: pandas.DataFrame([["a.png", "x", "y"]], columns=["image", "caption", "caption"]),
            "column",
        ),
        "columns that are numbers": (lambda: pandas.DataFrame([["a.png", "x"]]), "column"),
        "a list": (lambda: [["a.png", "x"]], "data frame"),
        "None": (lambda: None, "data frame"),
    }
    for name, (make, says) in frames.items():
        yield FrameCase(f"frame: {name}", (), says, open=lambda make=make: Audit.from_pandas(make()))
    missing = lambda: Audit.from_pandas(pandas.DataFrame({"image": ["a"], "caption": ["b"]}), image="zz")  # noqa: E731
    yield FrameCase("frame: no such column", (), "has no column 'zz'", open=missing)


def _datasets() -> Iterator[Case]:
    import datasets

    from sremkit.audit.audit import Audit

    def images(entries: list[Any], captions: list[Any] | None = None) -> Any:
        features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
        given = captions if captions is not None else [f"caption {k}" for k in range(len(entries))]
        return datasets.Dataset.from_dict({"image": entries, "caption": given}, features=features)

    one = {"bytes": b"x", "path": None}
    given: dict[str, tuple[Callable[[], Any], str]] = {
        "all splits": (lambda: datasets.DatasetDict({"train": images([one])}), r"one split .* dataset\['train'\]"),
        "no splits": (lambda: datasets.DatasetDict(), "one split of a dataset"),
        "a list": (lambda: [1, 2], "one split of a dataset"),
        "None": (lambda: None, "one split of a dataset"),
        "no rows": (lambda: images([]), "no pairs|no rows|empty"),
        "no image in any row": (lambda: images([None, None]), "no image|no pairs"),
        "no caption in any row": (lambda: images([one], [None]), "caption|no pairs"),
        "no columns": (lambda: datasets.Dataset.from_dict({}), "column"),
        "labels": (lambda: datasets.Dataset.from_dict({"image": ["a.png"], "caption": [1]}), "caption|image"),
        "streamed": (lambda: images([one]).to_iterable_dataset(), "stream|one split|iterable"),
    }  # fmt: skip
    for name, (make, says) in given.items():
        yield FrameCase(f"dataset: {name}", (), says, open=lambda make=make: Audit.from_dataset(make()))
    missing = lambda: Audit.from_dataset(images([one]), text="zz")  # noqa: E731
    yield FrameCase("dataset: no such column", (), "has no column 'zz'", open=missing)
