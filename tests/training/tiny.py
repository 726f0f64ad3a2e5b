"""A run small enough to be stopped and started dozens of times: 96 pairs, a dual encoder, SREM.

Started as a script it reads folders from standard input and trains in each, in a process of its own.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import numpy as np
import torch

from sremkit.config.recipes import TrainingSettings
from sremkit.data import Batches, Pairs, make_noise
from sremkit.data.features import ArrayFeatures
from sremkit.evaluation.noise_observer import NoiseObserver
from sremkit.evaluation.scoring import validation_metrics
from sremkit.methods import build_method
from sremkit.training.run_folder import RunFolder
from sremkit.training.trainer import Trainer

SETTINGS = dict(
    epochs=6,
    warmup_epochs=2,
    adaptive_warmup=False,  # so that tests know the epochs of the warm-up
    decay_after=3,
    batch_size=16,
    learning_rate=3e-3,
    checkpoint_minutes=1e-3,
)


def tiny_pairs(num_images: int = 48, captions: int = 2, *, split: str = "train") -> Pairs:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(num_images, 12)).astype(np.float32)
    image_of_text = np.repeat(np.arange(num_images), captions)
    texts = images[image_of_text, :8] + 0.3 * rng.normal(size=(num_images * captions, 8)).astype(np.float32)
    names = [f"pair-{k:03d}" for k in range(len(image_of_text))]
    return Pairs(
        name="tiny",
        split=split,
        pair_ids=names,
        texts=names,
        image_of_text=image_of_text,
        image_ids=[str(k) for k in range(num_images)],
        image_features=ArrayFeatures(images),
        text_features=ArrayFeatures(texts.astype(np.float32)),
    )


def tiny_trainer(
    folder: RunFolder | None = None,
    *,
    method: str = "srem",
    pairs: Pairs | None = None,
    noise_rate: float = 0.3,
    **changes,
):
    """A trainer of the tiny run; `changes` go to its settings, or replace arguments of the trainer."""
    method_options, process = changes.pop("method_options", {}), changes.pop("process", (0, 1))
    arguments = {key: changes.pop(key) for key in ("reporter", "validate", "observer") if key in changes}
    clean = pairs or tiny_pairs()
    noise = make_noise(clean.image_of_text, rate=noise_rate, seed=1)
    settings = TrainingSettings(**{**SETTINGS, **changes})
    torch.manual_seed(settings.seed)
    built = build_method(method, **method_options)
    matcher = built.model("dual", image_dim=12, text_dim=8, hidden_size=16, embed_size=8, dropout=0.2)
    given = clean.paired_as(noise.image_of_text)
    trusted = Batches(tiny_pairs(num_images=8), batch_size=settings.batch_size) if built.needs_trusted else None
    arguments = {
        "validate": lambda model: validation_metrics(model, clean),
        "observer": NoiseObserver(clean.image_of_text),
        **arguments,
    }
    return Trainer(
        matcher,
        built,
        Batches(given, batch_size=settings.batch_size, seed=settings.seed, shard=process),
        settings,
        device=torch.device("cpu"),
        folder=folder,
        trusted=trusted,
        process=process,
        model_facts={"model": {"name": matcher.name, "options": matcher.options}, "vocabulary": None},
        **arguments,
    )


def outcome(folder: RunFolder) -> tuple[dict[str, torch.Tensor], list[dict]]:
    """Everything a run computed: its last state, and its metrics without the times."""
    saved = folder.latest_step()
    assert saved is not None
    metrics = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in folder.read_metrics()]
    return saved[0], metrics


def train_in(path: Path) -> None:
    """Train in a folder from wherever it stands, and say when it starts and when it has finished."""
    torch.set_num_threads(1)
    run = RunFolder.open(path) if (path / "config.toml").exists() else RunFolder.create(path, config="")
    trainer = tiny_trainer(run)
    print(f"started {os.getpid()}", flush=True)
    trainer.run()
    print("finished", flush=True)


def train_in_forks() -> None:
    """For each folder named on standard input a process that trains in it, so that imports are done once.

    An empty line waits for that process. Until then its number is not given to another, so it can be killed safely.
    """
    child = 0
    torch.set_num_threads(1)
    tiny_trainer()  # the first optimizer imports much of PyTorch
    for line in sys.stdin:
        if not line.strip():
            print(f"ended {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
            continue
        child = os.fork()
        if child == 0:
            try:
                train_in(Path(line.strip()))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)


if __name__ == "__main__":
    train_in_forks()
