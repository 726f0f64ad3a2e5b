"""Train what was prepared, in a run folder, to the end or on from where it stands."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from sremkit.data import Batches, Noise
from sremkit.data.pairs import MISSING
from sremkit.data.subwords import SubwordTokenizer
from sremkit.errors import DataError
from sremkit.evaluation.noise_observer import NoiseObserver
from sremkit.evaluation.scoring import validation_metrics
from sremkit.experiment.memory import peak_memory_mb
from sremkit.experiment.preparation import Prepared
from sremkit.models.hf_folder import PRETRAINED
from sremkit.reports.run import write_run_report
from sremkit.training.checkpoint import of_another_model, without_prefix
from sremkit.training.reporters import Observer, Reporter, ReporterList
from sremkit.training.run_folder import DamagedWarning, RunFolder, describe_environment
from sremkit.training.trackers import Tracking
from sremkit.training.trainer import Trainer


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


def describe_noise(noise: Noise) -> dict[str, Any]:
    """What every result must say about its noise."""
    return {"protocol": noise.protocol, "rate": noise.rate, "seed": noise.seed, "hash": noise.hash}


def _seconds_so_far(folder: RunFolder) -> float:
    """Seconds of a resumed run; a damaged record, which is going to be written again, counts as none."""
    try:
        seconds: float = folder.read_record().get("seconds", 0.0)
        return seconds
    except DataError as problem:
        warnings.warn(f"{problem}; the seconds of earlier sessions are not counted", DamagedWarning, stacklevel=2)
        return 0.0
