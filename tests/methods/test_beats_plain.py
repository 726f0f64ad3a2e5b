"""Where 60 % of the captions are wrong, methods made for that beat plain training by far.

Small enough for a test: 1,000 generated scenes as mean patch and bag of words, a dual encoder, 16 epochs. All
methods share data, noise, model, optimiser and number of epochs; only the method differs. What is compared is the
mean validation R_sum of the last four epochs, so that no lucky epoch decides.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from sremkit.config.recipes import TrainingSettings
from sremkit.data import Batches, Pairs, Vocabulary, make_noise
from sremkit.data.features import ArrayFeatures
from sremkit.data.generated.scenes import make_scenes
from sremkit.evaluation.scoring import validation_metrics
from sremkit.methods import build_method
from sremkit.training.trainer import Trainer

SETTINGS = TrainingSettings(warmup_epochs=8, epochs=8, decay_after=8, batch_size=64, learning_rate=2e-3, threads=1)
LAST = 4  # epochs whose mean counts
BY_LOGITS = {"similarity": "logit", "margin": 2.0}  # a fifth of the scale, as 0.2 is of a cosine


@dataclass(frozen=True)
class Rival:
    """A method, its options, the plain method that it is to beat, and by what factor at least."""

    name: str
    options: dict[str, Any]
    plain: str = "hinge-mean"
    factor: float = 1.2


RIVALS = [
    # Noisy pairs stay out: with them NCR's R_sum fell from 179 to 103 in a run on 600 scenes.
    Rival("ncr", {**BY_LOGITS, "noisy_after": 99}),
    # With the published mixture of betas the division fails on these losses; with the published warm-up on the three
    # pairs in ten of smallest loss too little is learnt (R_sum 101 to 117 on four seeds, plain training 124 to 133);
    # and labels that are cut off below 0.5 leave it to luck (131 to 205). Without all three: 177 to 218 on six seeds.
    Rival(
        "bicro",
        {**BY_LOGITS, "noisy_after": 99, "mixture": "normal", "warmup_keep": 1.0, "min_label": 0.0},
    ),
    # Published numbers times ten, as logits are ten times what a tanh of them would be where it does not saturate.
    Rival("decl", {**BY_LOGITS, "temperature": 1.0, "ranking_weight": 0.08, "hardness_decay": 0.1}),
    # Hardest negatives make all scores equal here (R_sum 55).
    Rival(
        "mscn",
        {**BY_LOGITS, "negatives": "mean", "virtual_rate": 2e-3, "meta_rate": 1.7e-4, "meta_interval": 8},
    ),
    # At temperature 1 it sees InfoNCE's very probabilities, and only the loss differs: R_sum 188 to 203 on four seeds,
    # InfoNCE 152 to 166, so 1.21 to 1.25 times as much.
    Rival("rcl", {"similarity": "logit", "temperature": 1.0}, plain="infonce", factor=1.1),
    # 235 and 214 where InfoNCE reaches 152, one seed.
    Rival("crcl", {"similarity": "logit", "temperature": 1.0}, plain="infonce", factor=1.3),
    Rival("gsc", {"similarity": "logit", "temperature": 1.0}, plain="infonce", factor=1.2),
]
PLAIN = {"hinge-mean": BY_LOGITS, "infonce": {}}


def as_vectors(pairs: Pairs, vocabulary: Vocabulary) -> Pairs:
    """Each image as its mean patch, each caption as the set of its words."""
    regions, _ = pairs.image_features.rows(np.arange(pairs.num_images))
    words = np.zeros((len(pairs), len(vocabulary)), dtype=np.float32)
    for row, text in enumerate(pairs.texts):
        words[row, vocabulary.encode(text)] = 1
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    return replace(pairs, image_features=ArrayFeatures(regions.mean(axis=1)), text_features=ArrayFeatures(words))


@functools.cache
def scenes() -> tuple[Pairs, Pairs]:
    train, val = make_scenes(1000, split="train"), make_scenes(200, split="val")
    vocabulary = Vocabulary.build(train.texts, min_count=1)
    return as_vectors(train, vocabulary), as_vectors(val, vocabulary)


class Listener:
    """Notes the validation result of each epoch."""

    def __init__(self) -> None:
        self.rsum: list[float] = []

    def step(self, *numbers: object) -> None: ...

    def warn(self, sentence: str) -> None: ...

    def epoch(self, row: dict[str, Any]) -> None:
        self.rsum.append(row["val/rsum"])


def reached(name: str, options: dict[str, Any]) -> float:
    """The mean validation R_sum of the last epochs after training with this method."""
    train, val = scenes()
    noise = make_noise(train.image_of_text, rate=0.6, seed=0)
    torch.manual_seed(0)
    method = build_method(name, **options)
    widths = {"image_dim": train.image_features.dim, "text_dim": train.text_features.dim}
    matcher = method.model("dual", **widths, hidden_size=128, embed_size=64, dropout=0.3)
    trusted_rows = np.arange(250)  # the captions of 50 scenes, for a method that needs right pairs
    given = train.paired_as(noise.image_of_text)
    if method.needs_trusted:
        given = given.select(np.arange(250, len(train)))
    listener = Listener()
    Trainer(
        matcher,
        method,
        Batches(given, batch_size=SETTINGS.batch_size),
        SETTINGS,
        device=torch.device("cpu"),
        validate=lambda model: validation_metrics(model, val),
        reporter=listener,
        trusted=Batches(train.select(trusted_rows), batch_size=SETTINGS.batch_size),
    ).run()
    assert len(listener.rsum) == SETTINGS.warmup_epochs + SETTINGS.epochs
    return float(np.mean(listener.rsum[-LAST:]))


@functools.cache
def plainly_reached(name: str) -> float:
    return reached(name, PLAIN[name])


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival.name)
def test_a_robust_method_beats_plain_training_where_most_captions_are_wrong(rival: Rival) -> None:
    assert reached(rival.name, rival.options) > rival.factor * plainly_reached(rival.plain)
