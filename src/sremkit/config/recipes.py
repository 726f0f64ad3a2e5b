"""Recipes: complete TOML files that say what to train, on what, and how.

The first comment line of a recipe is its headline; the head states command, cost and expected result.
"""

from __future__ import annotations

import copy
import json
import math
import re
import tomllib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from sremkit.config.aliases import rename_keys
from sremkit.config.settings import (
    Range,
    SettingsError,
    assign,
    check_ranges,
    from_table,
    parse_assignment,
    refuse_dates,
    suggestion,
)
from sremkit.errors import UnknownNameError, UserError, UserNotice
from sremkit.io import MAX_SEED, first_line

Precision = Literal["float32", "tf32", "bf16"]
NoiseProtocol = Literal["caption", "image", "absent", "near", "shared-word", "one-word"]
Auto = Literal["auto"]  # the fastest safe way (`sremkit.training.execution`)

COUNT = Range(least=0, limit=1_000_000_000)
AT_LEAST_ONE = Range(least=1, limit=1_000_000_000)
MAX_EPOCHS = 1_000_000
EPOCHS = Range(least=0, limit=MAX_EPOCHS)
SEED = Range(least=0, limit=MAX_SEED)
THREADS = Range(least=1, limit=1024)  # more threads than the system allows end the process
WORKERS = Range(least=0, limit=256)
SHARE = Range(least=0, most=1)
DEVICES = re.compile(r"auto|cpu|mps|cuda(:\d+)?")
DEVICE_NAMES = "auto, cpu, cuda, cuda with a number such as cuda:0, or mps"


@dataclass(frozen=True)
class DataSettings:
    """Which pairs, and how they are read.

    Args:
        source: path of the pairs, in which $SREMKIT_DATA is filled in, or "scenes" for generated ones.
        format: one of `srem list formats`; recognised when absent.
        train_split, val_split, test_split: name of this split in the data.
        test_folds: average the test result over this number of folds of images; one fold when absent.
        train_options: the format's options for the training split.
        options: the format's options for every split (`srem describe FORMAT`).
        keep: a keep-list: train only on the pairs with these ids, one a line.
        vocabulary: a published JSON file; built from the training captions when absent.
        min_count: words seen less often are unknown.
        words: whether the model reads words; false for models on sentence vectors.
        trusted_images: images set aside with their captions, for methods that need correct pairs.
        pixel_cache: of models on pixels: where resized images are kept. "auto": in memory if they take at most 256 MB,
            else in the user's cache folder ($SREMKIT_CACHE); "off": decode them in every epoch; or a folder.
        image_workers: processes that decode images; by default one per core.
    """

    source: str
    format: str | None = None
    train_split: str = "train"
    val_split: str = "val"
    test_split: str = "test"
    test_folds: Annotated[int | None, AT_LEAST_ONE] = None
    train_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    keep: str | None = None
    vocabulary: str | None = None
    min_count: Annotated[int, AT_LEAST_ONE] = 4
    words: bool = True
    trusted_images: Annotated[int, COUNT] = 0
    pixel_cache: str = "auto"
    image_workers: Annotated[int | None, WORKERS] = None

    def __post_init__(self) -> None:
        check_ranges(self, where="data")


@dataclass(frozen=True)
class NoiseSettings:
    """Which training pairs are made wrong.

    Args:
        rate: share of the training captions (or images) that are made wrong.
        protocol: shuffle the images of single captions ("caption"), or of all captions of an image ("image"); captions
            of images that are held out ("absent"); the image of a similar caption ("near", needs sentence vectors), or
            of a caption with a content word in common ("shared-word"); one content word exchanged ("one-word", for
            models that read words).
        seed: of the draw.
        file: a published index file, used instead of rate, protocol and seed.
    """

    rate: Annotated[float, SHARE] = 0.0
    protocol: NoiseProtocol = "caption"
    seed: Annotated[int, SEED] = 0
    file: str | None = None

    def __post_init__(self) -> None:
        check_ranges(self, where="noise")


@dataclass(frozen=True)
class TrainingSettings:
    """How long, how fast, in which batches.

    Args:
        epochs: number of epochs after the warm-up.
        warmup_epochs: number of warm-up epochs, or their minimum with an adaptive warm-up.
        adaptive_warmup: continue the warm-up until the method is ready, and return to it if training after it
            fails; the run keeps its number of epochs. False: a fixed count, as in the paper.
        batch_size: pairs of a step, of all processes together.
        learning_rate: of Adam.
        decay_after: epochs after the planned warm-up until the learning rate falls.
        decay_factor: by which the learning rate is then multiplied.
        weight_decay: of Adam.
        max_grad_norm: gradients of each network are clipped to this norm.
        ema_decay: of an exponential moving average of the weights, which is then evaluated and kept; 0 for none.
        seed: of initial weights, dropout and the order of the data.
        bucket_by_length: batches of captions of similar length, which are faster; changes the negatives.
        unique_images: no image twice in a batch.
        drop_last: leave out an incomplete last batch.
        workers: threads that read batches ahead; on a GPU at least four.
        device: auto, cpu, cuda, cuda with a number such as cuda:0, or mps.
        threads: CPU threads. When absent all cores, or one if threads that wait for each other spin and another process
            is busy (`sremkit.threads`).
        precision: float32, tf32 (matrix products of CUDA devices) or bf16 (autocast; losses stay float32). "auto": bf16
            on a CUDA device that computes in it, else float32.
        float32_steps: first steps of a bf16 training that are in float32; without them SGR loses accuracy.
        compile: torch.compile of the model and of the method's loss; on a GPU, of SAF and SGR only the regions around
            their kernels. "auto": these regions and the loss, in a run that is long enough; eager training if they
            cannot be compiled.
        cuda_graphs: replay steps as CUDA graphs, for steps that take the host longer than the device. "auto": where
            model and method support it; eager training if a step cannot be captured.
        deterministic: the same numbers in each run on a device: "auto" is float32, eager, and PyTorch's deterministic
            algorithms are used. Slower.
        grad_cache_chunk_size: gradient caching: encode this number of pairs at a time (dual encoders only).
        patience: stop after this number of epochs without a better validation result.
        checkpoint_minutes: time between checkpoints, besides the one at the end of each epoch.
        keep_statistics: number of last epochs whose per-pair statistics stay on disk.
        min_crop_area: of models on pixels: train on random crops of at least this share of the image; 1 for none.
        flip: share of training images that are mirrored; captions that say left and right then become wrong.
        init: begin with the weights of this run or model folder.
    """

    epochs: Annotated[int, EPOCHS] = 50
    warmup_epochs: Annotated[int, EPOCHS] = 5
    adaptive_warmup: bool = True
    batch_size: Annotated[int, AT_LEAST_ONE] = 128
    learning_rate: Annotated[float, Range(above=0, below=math.inf, words="a positive number")] = 2e-4
    decay_after: Annotated[int, EPOCHS] = 25
    decay_factor: Annotated[float, SHARE] = 0.1
    weight_decay: Annotated[float, Range(least=0, below=math.inf, words="0 or a positive number")] = 0.0
    max_grad_norm: Annotated[float, Range(above=0)] = 2.0  # inf clips nothing
    ema_decay: Annotated[float, Range(least=0, below=1, words="0, or a decay between 0 and 1 such as 0.999")] = 0.0
    seed: Annotated[int, SEED] = 0
    bucket_by_length: bool = False
    unique_images: bool = False
    drop_last: bool = False
    workers: Annotated[int, WORKERS] = 0
    device: str = "auto"
    threads: Annotated[int | None, THREADS] = None
    precision: Precision | Auto = "auto"
    float32_steps: Annotated[int, COUNT] = 250
    compile: bool | Auto = "auto"
    cuda_graphs: bool | Auto = "auto"
    deterministic: bool = False
    grad_cache_chunk_size: Annotated[int | None, AT_LEAST_ONE] = None
    patience: Annotated[int | None, COUNT] = None
    checkpoint_minutes: Annotated[float, Range(least=0)] = 5.0
    keep_statistics: Annotated[int, COUNT] = 3
    min_crop_area: Annotated[float, Range(above=0, most=1)] = 1.0
    flip: Annotated[float, SHARE] = 0.0
    init: str | None = None

    def __post_init__(self) -> None:
        check_ranges(self, where="training")
        if self.epochs + self.warmup_epochs == 0:
            raise SettingsError(
                "'training.epochs' and 'training.warmup_epochs' are both 0, so nothing would be trained; "
                "set one of them to 1 or more"
            )
        if not DEVICES.fullmatch(self.device):
            raise SettingsError(f"'training.device' must be {DEVICE_NAMES}; got '{self.device}'")


@dataclass(frozen=True)
class ProvenanceSettings:
    """Where the settings of a recipe come from. It has no effect on a run.

    Args:
        trials: number of settings that were tried on the validation split before these were chosen; unknown when
            absent.
    """

    trials: Annotated[int | None, COUNT] = None

    def __post_init__(self) -> None:
        check_ranges(self, where="provenance")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run.

    Args:
        model: name of a backbone, and its options.
        method: name of a method, and its options.
        provenance: where the settings come from; no part of a run, so neither of its record nor of a cell's key.
    """

    name: str
    data: DataSettings
    model: dict[str, Any]
    method: dict[str, Any]
    noise: NoiseSettings = field(default_factory=NoiseSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    provenance: ProvenanceSettings = field(default_factory=ProvenanceSettings, compare=False)

    def __post_init__(self) -> None:
        for table in ("model", "method"):
            if not isinstance(getattr(self, table).get("name"), str):
                raise SettingsError(f'the table [{table}] needs a name, such as name = "dual"')

    def entries(self, table: str) -> dict[str, Any]:
        """The settings of a table by their names."""
        value = getattr(self, table)
        return value if isinstance(value, dict) else {f.name: getattr(value, f.name) for f in fields(value)}


class OptionsDroppedWarning(UserNotice):
    """The options of a recipe's model or method that were left out, because another one was named."""


TABLES = ("data", "noise", "model", "method", "training")


def recipe_files() -> dict[str, Path]:
    """Every shipped recipe by its name."""
    return {file.stem: file for file in sorted(_folder().glob("*.toml"))}


def recipe_headlines() -> dict[str, str]:
    """Name and first comment line of every shipped recipe."""
    first_lines = {name: file.read_text(encoding="utf-8").split("\n", 1)[0] for name, file in recipe_files().items()}
    return {name: line.removeprefix("#").strip() for name, line in first_lines.items()}


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = (), *, warn_renamed: bool = True) -> Recipe:
    """Load a recipe by its name or from a TOML file, with `key=value` overrides on top.

    Args:
        warn_renamed: warn of settings under an old name, which work (`sremkit.config.aliases`).
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        shipped = recipe_files()
        if str(name_or_path) not in shipped:
            raise UnknownNameError(
                f"there is no recipe called '{name_or_path}' (a file of your own ends in .toml); "
                f"{suggestion(str(name_or_path), shipped)}"
            )
        path = shipped[str(name_or_path)]
    table = read_toml(path)
    return recipe_from_table({"name": path.stem, **table}, overrides, warn_renamed=warn_renamed)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a recipe or of a run's config.toml."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise UserError(f"{path} does not exist; `srem list recipes` names those that come along") from cause
    except (ValueError, RecursionError) as cause:  # not TOML, not UTF-8, a number of thousands of digits
        raise UserError(f"{path} is not valid TOML: {first_line(cause)}") from cause


def recipe_from_table(table: dict[str, Any], overrides: Sequence[str] = (), *, warn_renamed: bool = True) -> Recipe:
    """A recipe from nested tables, with `key=value` overrides on top."""
    table = rename_keys(copy.deepcopy(table), warn=warn_renamed)
    assignments = [parse_assignment(override) for override in overrides]
    for key, value in assignments:
        if key in (["model", "name"], ["method", "name"]):
            _rename_component(table, key[0], value)
    for key, value in assignments:
        assign(table, key, value)
    refuse_dates(table)
    return from_table(Recipe, table, where="")


def extended(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """A run's recipe with more epochs; every other setting stays as it was."""
    if not overrides:
        return recipe
    assignments = [parse_assignment(override) for override in overrides]
    if any(key != ["training", "epochs"] for key, _ in assignments):
        raise UserError(
            "a resumed run keeps its settings but for training.epochs, which may grow; leave the other --set away, or "
            "begin a new run with its weights: --init RUN"
        )
    table = {
        **{f.name: getattr(recipe.training, f.name) for f in fields(recipe.training)},
        "epochs": assignments[-1][1],
    }
    training = from_table(TrainingSettings, table, where="training")
    if training.epochs < recipe.training.epochs:
        raise UserError(
            f"the run has {recipe.training.epochs} epochs; give more than that, not training.epochs={training.epochs}"
        )
    return replace(recipe, training=training)


def _rename_component(table: dict[str, Any], kind: str, name: Any) -> None:
    """Replace the recipe's model or method by another one with its default options.

    The options of the recipe are those of the other component: many do not exist in this one, and equal names, such
    as the temperatures of two losses, do not have equal meanings.
    """
    before = table.get(kind, {})
    if not isinstance(before, dict) or before.get("name") == name:
        return
    table[kind] = {"name": name}
    dropped = [f"{kind}.{key}={to_toml(value)}" for key, value in before.items() if key != "name"]
    if dropped:
        warnings.warn(
            f"{kind}.name is '{name}' in place of the recipe's '{before.get('name')}', so the options of the latter "
            f"are left out: {', '.join(dropped)}; `srem describe {name}` shows those of '{name}', for --set",
            OptionsDroppedWarning,
            stacklevel=3,
        )


def recipe_to_toml(recipe: Recipe) -> str:
    """The resolved recipe as TOML, every default of its settings written out."""
    lines = [f"name = {to_toml(recipe.name)}"]
    for table in TABLES:
        lines += ["", f"[{table}]"]
        lines += [f"{key} = {to_toml(entry)}" for key, entry in recipe.entries(table).items() if entry is not None]
    return "\n".join(lines) + "\n"


def to_toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {to_toml(entry)}" for key, entry in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf, nan
    return json.dumps(value, ensure_ascii=False)


def _folder() -> Path:
    """The recipes inside an installed package, or the project's own folder next to `src`."""
    installed = Path(str(resources.files("sremkit"))) / "configs"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "configs"
