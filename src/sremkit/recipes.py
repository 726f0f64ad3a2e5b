"""Recipes: complete TOML files that say what to train, on what, and how.

The first comment line of a recipe is its headline; the head states command, cost and expected result.
"""

from __future__ import annotations

import copy
import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from sremkit.errors import UnknownNameError, UserError
from sremkit.settings import (
    Range,
    SettingsError,
    assign,
    check_ranges,
    from_table,
    parse_assignment,
    suggestion,
)

Precision = Literal["float32", "tf32", "bf16"]

COUNT = Range(least=0)
AT_LEAST_ONE = Range(least=1)
SHARE = Range(least=0, most=1)
DATA_RANGES = {"test_folds": AT_LEAST_ONE, "min_count": AT_LEAST_ONE, "trusted_images": COUNT}
NOISE_RANGES = {"rate": SHARE, "seed": COUNT}
TRAINING_RANGES = {
    "epochs": COUNT,
    "warmup_epochs": COUNT,
    "batch_size": AT_LEAST_ONE,
    "learning_rate": Range(above=0, below=math.inf, words="a positive number"),
    "decay_after": COUNT,
    "decay_factor": SHARE,
    "weight_decay": Range(least=0, below=math.inf, words="0 or a positive number"),
    "clip": Range(above=0),  # inf clips nothing
    "average": Range(least=0, below=1, words="0, or a decay between 0 and 1 such as 0.999"),
    "full_precision_steps": COUNT,
    "seed": COUNT,
    "workers": COUNT,
    "threads": AT_LEAST_ONE,
    "micro_batch": AT_LEAST_ONE,
    "patience": COUNT,
    "checkpoint_minutes": Range(least=0),
    "keep_statistics": COUNT,
}
DEVICES = re.compile(r"auto|cpu|mps|cuda(:\d+)?")
DEVICES_IN_WORDS = "auto, cpu, cuda, cuda with a number such as cuda:0, or mps"


@dataclass(frozen=True)
class DataSettings:
    """Which pairs, and how they are read."""

    source: str  # a path; $SREMKIT_DATA is filled in; or "scenes"
    format: str | None = None  # recognised when absent
    train_split: str = "train"
    val_split: str = "val"
    test_split: str = "test"
    test_folds: int | None = None  # test in so many folds of images, and average; all at once when absent
    train_options: dict[str, Any] = field(default_factory=dict)  # reader's options for the training split
    options: dict[str, Any] = field(default_factory=dict)  # reader's options for every split
    keep: str | None = None  # a keep-list: train only on the pairs with these ids, one a line
    vocabulary: str | None = None  # a published JSON file; built from the training captions when absent
    min_count: int = 4  # words seen less often are unknown
    words: bool = True  # false for models on sentence vectors
    trusted_images: int = 0  # set aside with their captions, for methods that need right pairs

    def __post_init__(self) -> None:
        check_ranges(self, DATA_RANGES, where="data")


@dataclass(frozen=True)
class NoiseSettings:
    """Which training pairs are made wrong."""

    rate: float = 0.0
    protocol: Literal["caption", "image"] = "caption"
    seed: int = 0
    file: str | None = None  # a published index file, in the place of the three above

    def __post_init__(self) -> None:
        check_ranges(self, NOISE_RANGES, where="noise")


@dataclass(frozen=True)
class TrainingSettings:
    """How long, how fast, in which batches."""

    epochs: int = 50  # after the warm-up
    warmup_epochs: int = 5
    adaptive_warmup: bool = False  # end it as soon as the method says that it suffices; the above is the most
    batch_size: int = 128
    learning_rate: float = 2e-4
    decay_after: int = 25  # epochs after the warm-up until the learning rate falls
    decay_factor: float = 0.1
    weight_decay: float = 0.0
    clip: float = 2.0  # largest gradient norm
    average: float = 0.0  # decay of a moving average of the weights, which is then what is kept; 0 is none
    seed: int = 0
    bucket_by_length: bool = False
    unique_images: bool = False
    drop_last: bool = False
    workers: int = 0  # threads that read ahead; on a GPU there are four at least
    device: str = "auto"
    threads: int | None = None  # of the processor; all cores when absent
    precision: Precision = "float32"
    full_precision_steps: int = 250  # of bf16: the first ones are float32, or rounding would spoil SGR
    compile: bool = False  # torch.compile; on a GPU, for SAF and SGR, what stands around their kernels
    recorded: bool = False  # replay steps as CUDA graphs: for steps that take the host longer than the device
    micro_batch: int | None = None  # encode in pieces of this size to save memory (dual encoders only)
    patience: int | None = None  # stop after so many epochs without a better validation result
    checkpoint_minutes: float = 5.0  # besides the one at the end of each epoch
    keep_statistics: int = 3  # epochs whose per-pair statistics stay on disk

    def __post_init__(self) -> None:
        check_ranges(self, TRAINING_RANGES, where="training")
        if self.epochs + self.warmup_epochs == 0:
            raise SettingsError(
                "'training.epochs' and 'training.warmup_epochs' are both 0, so nothing would be trained; "
                "set one of them to 1 or more"
            )
        if not DEVICES.fullmatch(self.device):
            raise SettingsError(f"'training.device' must be {DEVICES_IN_WORDS}; got '{self.device}'")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run."""

    name: str
    data: DataSettings
    model: dict[str, Any]  # name, and the options of that backbone
    method: dict[str, Any]  # name, and the options of that method
    noise: NoiseSettings = field(default_factory=NoiseSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def __post_init__(self) -> None:
        for table in ("model", "method"):
            if not isinstance(getattr(self, table).get("name"), str):
                raise SettingsError(f'the table [{table}] needs a name, such as name = "dual"')


def recipe_files() -> dict[str, Path]:
    """Every shipped recipe by its name."""
    return {file.stem: file for file in sorted(_folder().glob("*.toml"))}


def recipe_headlines() -> dict[str, str]:
    """Name and first comment line of every shipped recipe."""
    return {name: headline(file) for name, file in recipe_files().items()}


def headline(file: Path) -> str:
    first = file.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.removeprefix("#").strip()


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe by its name or from a TOML file, with `key=value` overrides on top."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        shipped = recipe_files()
        if str(name_or_path) not in shipped:
            raise UnknownNameError(
                f"there is no recipe called '{name_or_path}' (a file of your own ends in .toml); "
                f"{suggestion(str(name_or_path), shipped)}"
            )
        path = shipped[str(name_or_path)]
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise UserError(f"{path} does not exist; `srem list recipes` names those that come along") from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise UserError(f"{path} is not valid TOML: {cause}") from cause
    return recipe_from_table({"name": path.stem, **table}, overrides)


def recipe_from_table(table: dict[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from nested tables, with `key=value` overrides on top."""
    table = copy.deepcopy(table)
    for override in overrides:
        assign(table, *parse_assignment(override))
    return from_table(Recipe, table, where="")


def recipe_to_toml(recipe: Recipe) -> str:
    """The resolved recipe as TOML, every default written out."""
    lines = [f"name = {json.dumps(recipe.name)}"]
    for table in ("data", "noise", "model", "method", "training"):
        value = getattr(recipe, table)
        entries = (
            value if isinstance(value, dict) else {f.name: getattr(value, f.name) for f in fields(value)}
        )
        lines += ["", f"[{table}]"]
        lines += [f"{key} = {_toml(entry)}" for key, entry in entries.items() if entry is not None]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{key} = {_toml(entry)}" for key, entry in value.items()) + " }"
            if value
            else "{}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _folder() -> Path:
    """The recipes inside an installed package, or the project's own folder beside `src`."""
    installed = Path(str(resources.files("sremkit"))) / "configs"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "configs"
