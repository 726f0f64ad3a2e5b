"""The model and the method of a recipe; what a recipe gets wrong about them is refused with its setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sremkit.config.settings import SettingsError, check_options, check_sizes
from sremkit.data import Pairs, Vocabulary
from sremkit.data.pairs import FeatureSource
from sremkit.errors import DataError, UserError
from sremkit.experiment.memory import physical_memory
from sremkit.methods import Method, build_method
from sremkit.models import BACKBONES, Matcher
from sremkit.models.matcher import FROM_DATA

LARGE_SIZE = 8192  # of a model's option; smaller models are built without a look at the memory


def check_backbone(table: dict[str, Any]) -> None:
    """Refuse options that the backbone does not take, before the data are read."""
    backbone = BACKBONES[table["name"]]
    if backbone.has_tokenizer and not {"folder", "config"} & set(table):
        raise SettingsError(
            f"'{table['name']}' starts from a pretrained model; give its folder, or its name on the Hugging Face hub, "
            "with --set model.folder=FOLDER"
        )
    check_options(backbone, {key: value for key, value in table.items() if key != "name"}, where="model")


def build_model(table: dict[str, Any], pairs: Pairs, vocabulary: Vocabulary | None, method: Method) -> Matcher:
    """Build the backbone; widths that follow from the data need not be written down."""
    options = {key: value for key, value in table.items() if key != "name"}
    backbone = BACKBONES[table["name"]]
    from_data: dict[str, Callable[[], int]] = {
        "image_dim": lambda: _dim(pairs, "image_features"),
        "text_dim": lambda: _dim(pairs, "text_features"),
        "vocab_size": lambda: len(vocabulary) if vocabulary is not None else 0,
    }
    for option in FROM_DATA:
        if option in backbone.__init__.__annotations__ and option not in options:
            options[option] = from_data[option]()
    with _values_of("model"):
        _check_memory(method, table["name"], options)
        return method.model(table["name"], **options)


def method_of(table: dict[str, Any]) -> Method:
    options = {key: value for key, value in table.items() if key != "name"}
    check_sizes(options, where="method")
    with _values_of("method"):
        return build_method(table["name"], **options)


def _check_memory(method: Method, name: str, options: dict[str, Any]) -> None:
    """Refuse a model that does not fit into memory, before the system ends the process."""
    if max((value for value in options.values() if isinstance(value, int)), default=0) < LARGE_SIZE:
        return
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        parameters = sum(p.numel() for p in method.model(name, **options).parameters())
    needed, there = 16 * parameters, physical_memory()  # float32: weights, gradients and two moments of Adam
    if needed > there:
        raise SettingsError(
            f"the model has {parameters:,} parameters, whose training takes at least {needed / 2**30:,.0f} GiB, but "
            f"this machine has {there / 2**30:,.0f} GiB of memory; choose smaller sizes in [model]"
        )


@contextmanager
def _values_of(table: str) -> Iterator[None]:
    """Inside, something is built from a recipe's table: a value that it refuses is the recipe's, not ours."""
    try:
        yield
    except ValueError as problem:
        if isinstance(problem, UserError):
            raise
        raise SettingsError(f"a setting in [{table}] will not do: {problem}") from problem


def _dim(pairs: Pairs, source: str) -> int:
    features: FeatureSource | None = getattr(pairs, source)
    if features is None:
        raise DataError(f"{pairs.name} has no {source.replace('_', ' ')}, which this backbone needs")
    return features.dim
