"""From a recipe to a finished run: reads the data, builds the model and the method, trains, evaluates.

This is where the parts meet. The truth about injected noise goes to the observer and the report only.
"""

from __future__ import annotations

import copy
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sremkit.config.recipes import DataSettings, Precision, Recipe
from sremkit.config.settings import SettingsError, check_options, check_sizes
from sremkit.data import Batches, Noise, Pairs, Vocabulary
from sremkit.data.pairs import MISSING, FeatureSource
from sremkit.data.pixels import PixelReading, has_pixels, readable_pairs, with_pixels
from sremkit.data.subwords import AnyTokenizer, SubwordTokenizer, tokenizer_from_dict
from sremkit.data.training_pairs import (
    are_trained_on,
    noise_for,
    read_split,
    read_training_pairs,
    resolve_source,
    with_noise,
)
from sremkit.data.worker_processes import usable_cores
from sremkit.errors import DataError, UserError
from sremkit.evaluation import retrieval_recall_folds
from sremkit.evaluation.noise_observer import NoiseObserver
from sremkit.evaluation.scoring import score_matrix, validation_metrics
from sremkit.methods import Method, build_method
from sremkit.models import BACKBONES, Matcher, build_matcher
from sremkit.models.ensemble import logit_of_mean
from sremkit.models.hf_folder import PRETRAINED
from sremkit.models.matcher import FROM_DATA
from sremkit.reports.run import write_run_report
from sremkit.threads import usable_threads
from sremkit.training.checkpoint import of_another_model, without_prefix
from sremkit.training.distributed import Process, this_process
from sremkit.training.execution import resolve_precision
from sremkit.training.initial_weights import StartWeights, find_weights
from sremkit.training.reporters import Observer, Reporter, ReporterList
from sremkit.training.run_folder import DamagedWarning, RunFolder, describe_environment
from sremkit.training.step import autocast
from sremkit.training.trackers import Tracking
from sremkit.training.trainer import Trainer

LARGE_SIZE = 8192  # of a model's option; smaller models are built without a look at the memory
#: Of a run that was killed before it wrote its record.
UNKNOWN_NOISE = {"protocol": "unknown", "rate": math.nan, "seed": None, "hash": "unknown"}


@dataclass
class Prepared:
    """Everything a recipe speaks of, ready to be trained."""

    recipe: Recipe
    train: Pairs  # as given, so with the noise in it
    true_image: np.ndarray  # (training pairs,) the truth about them: the image that each text belongs to, or MISSING
    is_noisy: np.ndarray  # (training pairs,) bool: which of them are wrong as given
    val: Pairs
    validates_on_training_pairs: bool  # the collection has no splits
    noise: Noise  # of all pairs, so before any were set aside
    trusted: Pairs | None  # right pairs, set aside for a method that needs some
    vocabulary: AnyTokenizer | None
    matcher: Matcher
    method: Method
    process: Process

    def model_facts(self) -> dict[str, Any]:
        """What it takes to use the trained model without the recipe."""
        return {
            "model": {"name": self.matcher.name, "options": self.matcher.options},
            "vocabulary": None if self.vocabulary is None else self.vocabulary.to_dict(),
        }


def prepare(
    recipe: Recipe, process: Process | None = None, *, decoding: Callable[[int, int], None] | None = None
) -> Prepared:
    """Read the data and build model and method as the recipe says.

    Args:
        process: which of several processes this is; found out when absent.
        decoding: called with the number of images decoded and of all, for models on pixels.
    """
    process = process or this_process(recipe.training.device)
    start = None if recipe.training.init is None else find_weights(recipe.training.init)
    if start is not None:
        recipe = replace(recipe, model=start.options_for(recipe.model))
    _check_backbone(recipe.model)
    clean = read_training_pairs(recipe.data)
    noise = noise_for(recipe.noise, clean)
    if noise.texts is not None and BACKBONES[recipe.model["name"]].text_input == "sentences":
        raise UserError(
            f"the noise protocol 'one-word' changes captions, but the backbone '{recipe.model['name']}' reads sentence "
            "vectors, which would be those of the right ones; choose a backbone that reads words, or protocol 'near'"
        )
    method = _method(recipe.method)
    aside = _set_aside(recipe, clean, method)  # (m,) bool
    has_tokenizer = BACKBONES[recipe.model["name"]].has_tokenizer
    vocabulary = None if has_tokenizer else _vocabulary(recipe.data, clean, start)
    torch.manual_seed(recipe.training.seed)
    threads = recipe.training.threads or usable_threads()
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high" if recipe.training.precision == "tf32" else "highest")
    val = read_split(recipe.data, recipe.data.val_split)
    validates_on_training_pairs = are_trained_on(val, clean)
    matcher = _matcher(recipe.model, clean, vocabulary, method)
    if start is not None:
        start.load_into(matcher)
    reading = pixel_reading(recipe.data, processes=process.world, progress=decoding)
    unreadable = np.zeros(0, dtype=np.int64)
    if matcher.image_transform is not None:
        clean = with_pixels(clean, matcher.image_transform, reading)
        unreadable = np.unique(clean.image_of_text[~has_pixels(clean)])
    leave_out = aside | np.isin(noise.image_of_text, unreadable)
    train, true_image, is_noisy = with_noise(clean, noise, leave_out=leave_out)
    return Prepared(
        recipe=recipe,
        train=train,
        true_image=true_image,
        is_noisy=is_noisy,
        val=pairs_for_model(matcher, val, reading),
        validates_on_training_pairs=validates_on_training_pairs,
        noise=noise,
        trusted=_trusted(clean, aside),
        vocabulary=_tokenizer(matcher, start) if has_tokenizer else vocabulary,
        matcher=matcher,
        method=method,
        process=process,
    )


def pairs_for_model(matcher: Matcher, pairs: Pairs, reading: PixelReading | None = None) -> Pairs:
    """The pairs as this model reads them: with pixels if it reads those, without images that cannot be read."""
    if matcher.image_transform is None:
        return pairs
    return readable_pairs(with_pixels(pairs, matcher.image_transform, reading))


def pixel_reading(
    data: DataSettings, *, processes: int = 1, progress: Callable[[int, int], None] | None = None
) -> PixelReading:
    workers = data.image_workers
    if workers is None and processes > 1:
        workers = max(1, usable_cores() // processes)
    return PixelReading(cache=data.pixel_cache, workers=workers, progress=progress)


def _trusted(clean: Pairs, aside: np.ndarray) -> Pairs | None:
    rows = np.flatnonzero(aside & has_pixels(clean))
    return clean.select(rows) if len(rows) else None


def train(
    prepared: Prepared,
    folder: RunFolder,
    *,
    reporter: Reporter | None = None,
    trackers: Sequence[str] = ("tensorboard",),
    report: bool = True,
) -> dict[str, Any]:
    """Train to the end, or go on where the folder stands; returns the record of the run.

    Args:
        trackers: "tensorboard", "wandb", "mlflow".
        report: write the page of the run at the end.
    """
    recipe, process = prepared.recipe, prepared.process
    settings = recipe.training
    started = time.monotonic()
    record: dict[str, Any] = {
        "recipe": recipe.name,
        "environment": describe_environment(process.device),
        "processes": process.world,
        "seed": settings.seed,
        "noise": describe_noise(prepared.noise),
        "pairs": len(prepared.train),
        "validates_on_training_pairs": prepared.validates_on_training_pairs,
        "parameters": sum(p.numel() for p in prepared.matcher.parameters()),
        "seconds": _seconds_so_far(folder),
    }
    tracking = Tracking(folder, recipe, trackers) if process.is_main else None
    trainer = make_trainer(prepared, ReporterList(reporter, tracking), folder)
    record["execution"] = {name: getattr(trainer.settings, name) for name in ("precision", "cuda_graphs", "compile")}
    try:
        record["best_rsum"] = trainer.run().best_score
    finally:
        record["seconds"] += time.monotonic() - started
        record["peak_memory_mb"] = peak_memory_mb(process.device)
        if tracking is not None:
            tracking.close(failed="best_rsum" not in record)
            folder.write_record(record)
    if process.is_main:
        save_pretrained(prepared, folder)
        if report:
            write_run_report(folder)
    return record


def save_pretrained(prepared: Prepared, folder: RunFolder) -> None:
    """Write the best model in its own format next to the run's files, if it has one."""
    if not prepared.matcher.has_tokenizer:
        return
    tensors, _ = folder.best()
    best = copy.deepcopy(prepared.matcher).cpu()
    with of_another_model(folder.checkpoints):
        best.load_state_dict(without_prefix("model", tensors))
    tokenizer = prepared.vocabulary if isinstance(prepared.vocabulary, SubwordTokenizer) else None
    best.save_pretrained(folder.path / PRETRAINED, tokenizer)


def make_trainer(
    prepared: Prepared, reporter: Reporter, folder: RunFolder | None = None, *, observer: Observer | None = None
) -> Trainer:
    """The trainer of a prepared recipe; without a folder it keeps the best weights in memory.

    Args:
        observer: of the batches, instead of the one that knows which pairs have a wrong image.
    """
    process, batches, settings = prepared.process, make_batches(prepared), prepared.recipe.training
    trusted = None
    if prepared.trusted is not None:
        trusted = Batches(
            prepared.trusted, batch_size=settings.batch_size, vocabulary=prepared.vocabulary, seed=settings.seed
        )
    if observer is None and prepared.is_noisy.any():  # else it is not known which pairs are wrong
        present = prepared.true_image != MISSING
        true_image = np.where(present, batches.image_ids(prepared.true_image), MISSING)
        observer = NoiseObserver(
            true_image, changed=prepared.is_noisy & (prepared.train.image_of_text == prepared.true_image)
        )
    return Trainer(
        prepared.matcher,
        prepared.method,
        batches,
        settings,
        device=process.device,
        folder=folder,
        validate=lambda matcher: validation_metrics(matcher, prepared.val, prepared.vocabulary),
        observer=observer,
        reporter=reporter,
        model_facts=prepared.model_facts(),
        process=(process.rank, process.world),
        trusted=trusted,
    )


def make_batches(prepared: Prepared) -> Batches:
    """The training batches, as the recipe wants them."""
    settings, process = prepared.recipe.training, prepared.process
    return Batches(
        prepared.train,
        batch_size=settings.batch_size,
        vocabulary=prepared.vocabulary,
        seed=settings.seed,
        drop_last=settings.drop_last,
        bucket_by_length=settings.bucket_by_length,
        unique_images=settings.unique_images,
        workers=settings.workers,
        image_id_seed=settings.seed,
        shard=(process.rank, process.world),
    )


def with_whole_paths(recipe: Recipe) -> Recipe:
    """The recipe with its files by whole paths, so that a run can be gone on with from another folder."""

    def whole(path: str | None) -> Any:
        if path is None or "$" in path or not Path(path).expanduser().exists():
            return path
        return str(Path(path).expanduser().resolve())

    data, noise = recipe.data, recipe.noise
    # Scenes are generated, whatever lies in a folder of that name.
    source = data.source if data.source == "scenes" else whole(data.source)
    data = replace(data, source=source, keep=whole(data.keep), vocabulary=whole(data.vocabulary))
    training = replace(recipe.training, init=whole(recipe.training.init))
    model = recipe.model
    if isinstance(model.get("folder"), str):
        model = {**model, "folder": whole(model["folder"])}
    return replace(recipe, data=data, noise=replace(noise, file=whole(noise.file)), training=training, model=model)


def load_best(folder: RunFolder) -> tuple[Matcher, AnyTokenizer | None]:
    """The best model of a run, with its vocabulary."""
    tensors, facts = folder.best()
    with of_another_model(folder.checkpoints):
        matcher = build_matcher(facts["model"]["name"], **facts["model"]["options"])
        matcher.load_state_dict(without_prefix("model", tensors))
        vocabulary = None if facts["vocabulary"] is None else tokenizer_from_dict(facts["vocabulary"])
    return matcher.eval(), vocabulary


def evaluate_runs(
    paths: Sequence[Path], *, split: str, folds: int | None = None, device: str = "auto"
) -> dict[str, Any]:
    """Recall of one run's best model, or of several as an ensemble: the logit of their mean similarity.

    Args:
        split: "val" or "test", as the first run's recipe names them.
        folds: average over so many folds of images; by default as that recipe tests, and 1 for "val".
    """
    folders = [RunFolder.open(path) for path in paths]
    recipe = folders[0].recipe()
    name = recipe.data.test_split if split == "test" else recipe.data.val_split
    if folds is None:
        folds = (recipe.data.test_folds or 1) if split == "test" else 1
    given = read_split(recipe.data, name)
    scores = []
    for folder in folders:
        matcher, vocabulary = load_best(folder)
        pairs = pairs_for_model(matcher, given, pixel_reading(recipe.data))
        place = this_process(device).device
        with autocast(_validation_precision(folder, place), place):
            scores.append(score_matrix(matcher.to(place), pairs, vocabulary).float())
    ensemble = scores[0] if len(scores) == 1 else logit_of_mean(*scores)
    metrics = retrieval_recall_folds(ensemble, pairs.image_of_text, folds=folds)
    records = [folder.read_record() for folder in folders]
    noises = [record.get("noise", UNKNOWN_NOISE) for record in records]
    return {
        "runs": [str(path) for path in paths],
        "split": name,
        "folds": folds,
        "ensemble": len(folders) > 1,
        "noise": noises[0],
        "noises": noises,
        "seen_in_training": any(record.get("validates_on_training_pairs", False) for record in records),
        "metrics": metrics,
    }


def _validation_precision(folder: RunFolder, device: torch.device) -> Precision:
    """The precision that a run was validated in; for a run without a record that of a new run on this device."""
    execution = folder.read_record().get("execution", {})
    settings = folder.recipe().training
    given = execution.get("precision", settings.precision) if settings.precision == "auto" else settings.precision
    return resolve_precision(given, device, deterministic=settings.deterministic)


def _seconds_so_far(folder: RunFolder) -> float:
    """Seconds of a resumed run; a damaged record, which is going to be written again, counts as none."""
    try:
        seconds: float = folder.read_record().get("seconds", 0.0)
        return seconds
    except DataError as problem:
        warnings.warn(f"{problem}; the seconds of earlier sessions are not counted", DamagedWarning, stacklevel=2)
        return 0.0


def describe_noise(noise: Noise) -> dict[str, Any]:
    """What every result must say about its noise."""
    return {"protocol": noise.protocol, "rate": noise.rate, "seed": noise.seed, "hash": noise.hash}


def peak_memory_mb(device: torch.device) -> float:
    """Peak memory so far in MiB: of the CUDA device, or of this process; NaN on Windows, which does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:
        return math.nan
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # macOS counts bytes, Linux KiB


def physical_memory() -> float:
    """Bytes of memory of this machine; infinity where the system does not say (Windows)."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return math.inf


def _set_aside(recipe: Recipe, clean: Pairs, method: Method) -> np.ndarray:
    """(m,) bool: which pairs are trusted, all captions of some images.

    The images are drawn by the noise's seed, also where the noise itself is read from a file. So the training's
    seed changes nothing here, and another noise seed sets other images aside.
    """
    wanted = recipe.data.trusted_images
    if method.needs_trusted and wanted == 0:
        raise UserError(
            f"the method '{recipe.method['name']}' learns from some pairs known to be right; say how many images "
            "to set aside for it, for example `--set data.trusted_images=100`"
        )
    images = np.unique(clean.image_of_text)
    if not 0 <= wanted < len(images):
        raise UserError(f"data.trusted_images is {wanted}, but the training data has {len(images)} images")
    # A draw of its own: the noise begins with a permutation too, and would have hit just the images set aside.
    chosen = np.random.default_rng([recipe.noise.seed, 1]).permutation(images)[:wanted]
    return np.isin(clean.image_of_text, chosen)


def _tokenizer(matcher: Matcher, start: StartWeights | None) -> AnyTokenizer:
    """The tokenizer of a pretrained model: of the exported model that a run begins with, else of the model's folder."""
    if start is not None and isinstance(start.vocabulary, SubwordTokenizer) and start.folder is None:
        return start.vocabulary
    return matcher.tokenizer()


def _vocabulary(data: DataSettings, pairs: Pairs, start: StartWeights | None) -> Vocabulary | None:
    if not data.words:
        return None
    if start is not None and isinstance(start.vocabulary, Vocabulary):  # the word embeddings belong to these words
        return start.vocabulary
    if data.vocabulary is not None:
        return Vocabulary.load(Path(resolve_source(data.vocabulary)))
    return Vocabulary.build(pairs.texts, min_count=data.min_count)


def _check_backbone(table: dict[str, Any]) -> None:
    """Refuse options that the backbone does not take, before the data are read."""
    backbone = BACKBONES[table["name"]]
    if backbone.has_tokenizer and not {"folder", "config"} & set(table):
        raise SettingsError(
            f"'{table['name']}' starts from a pretrained model; give its folder, or its name on the Hugging Face hub, "
            "with --set model.folder=FOLDER"
        )
    check_options(backbone, {key: value for key, value in table.items() if key != "name"}, where="model")


def _matcher(table: dict[str, Any], pairs: Pairs, vocabulary: Vocabulary | None, method: Method) -> Matcher:
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


def _method(table: dict[str, Any]) -> Method:
    options = {key: value for key, value in table.items() if key != "name"}
    check_sizes(options, where="method")
    with _values_of("method"):
        return build_method(table["name"], **options)


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
