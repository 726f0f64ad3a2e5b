"""A small dual encoder as a pair scorer, trained with SREM-plus on the noisy pairs themselves.

SREM-plus estimates a clean probability for each training pair; ridge CCA weights its pairs by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.scoring.types import PairVectors, ScoringSettings
from sremkit.data.batch import Batch
from sremkit.data.batches import batch_order
from sremkit.methods import TrainingContext
from sremkit.methods.srem_plus import SREMPlusMethod
from sremkit.models import build_matcher
from sremkit.models.backbones.dual import DualEncoder

MAX_GRAD_NORM = 2.0
MIN_STEPS = 150  # small data are trained for more epochs until they have so many steps,
MAX_EPOCH_FACTOR = 8  # but for at most so many times the epochs of the settings
WARMUP = 0.05  # fraction of the steps in which the learning rate rises
ROWS_PER_CHUNK = 4096

OnStep = Callable[[int, int], None]  # called with the steps done and all steps


@dataclass(frozen=True, eq=False)
class DualEncoderScorer:
    """A trained dual encoder, and the clean probability of each pair that it was trained on."""

    matcher: DualEncoder
    clean_prob: Tensor  # (training pairs,) in [0, 1]

    def encode_images(self, images: Tensor) -> Tensor:
        return _in_chunks(self.matcher.image_tower, images)

    def encode_texts(self, texts: Tensor) -> Tensor:
        return _in_chunks(self.matcher.text_tower, texts)


def build_dual_encoder(image_dim: int, text_dim: int, settings: ScoringSettings) -> DualEncoder:
    sizes = {name: getattr(settings, name) for name in ("hidden_size", "embed_size", "dropout", "scale")}
    matcher = build_matcher("dual", image_dim=image_dim, text_dim=text_dim, **sizes)
    assert isinstance(matcher, DualEncoder)
    return matcher


def train_dual_encoder(
    vectors: PairVectors, rows: np.ndarray, settings: ScoringSettings, *, seed: int, on_step: OnStep | None = None
) -> DualEncoderScorer:
    """Train on the pairs `rows`."""
    with seeded(seed):
        matcher = build_dual_encoder(vectors.images.shape[1], vectors.texts.shape[1], settings).train()
        # No mismatch probe: of small data, mismatched pairs may be fitted before the warm-up ends.
        method = SREMPlusMethod(complementary_weight=0.0, min_mismatch_ratio=0.0)
        method.start(TrainingContext(len(rows), torch.device("cpu")))
        optimizer = torch.optim.Adam(matcher.parameters(), lr=settings.learning_rate, fused=True)
        warmup, epochs, steps_per_epoch, batch_size = _schedule(len(rows), settings)
        step = step_function(optimizer, epochs * steps_per_epoch, on_step)
        for epoch in range(epochs):
            method.begin_epoch(epoch, warmup=epoch < warmup)
            for numbers in batch_order(len(rows), batch_size, seed=seed, epoch=epoch, shuffle=True, drop_last=True):
                pair_rows = torch.from_numpy(rows[numbers])
                image_id = vectors.image_of_text[pair_rows]
                images, sentences = vectors.images[image_id], vectors.texts[pair_rows]
                batch = Batch(pair_id=torch.from_numpy(numbers), image_id=image_id, images=images, sentences=sentences)
                step(method.loss(matcher, batch, warmup=epoch < warmup).total)
            method.finish_epoch()
    return DualEncoderScorer(matcher.eval(), method.clean_prob.clone())


def _schedule(num_pairs: int, settings: ScoringSettings) -> tuple[int, int, int, int]:
    """Warm-up epochs, all epochs, steps per epoch and batch size."""
    # At least 8 batches per epoch, where that leaves 32 pairs a batch.
    batch_size = max(min(settings.batch_size, num_pairs // 8), min(32, num_pairs))
    steps_per_epoch = max(num_pairs // batch_size, 1)
    epochs = settings.warmup_epochs + settings.epochs
    factor = min(max(MIN_STEPS / (epochs * steps_per_epoch), 1.0), MAX_EPOCH_FACTOR)
    warmup = math.ceil(settings.warmup_epochs * factor)
    return warmup, warmup + math.ceil(settings.epochs * factor), steps_per_epoch, batch_size


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed weights and dropout, and restore the state of the global random generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def step_function(optimizer: torch.optim.Optimizer, steps: int, on_step: OnStep | None) -> Callable[[Tensor], None]:
    """A function that takes one optimizer step on a loss: linear warm-up times cosine decay to 0, and clipping."""
    (group,) = optimizer.param_groups
    learning_rate, done = group["lr"], 0

    def step(loss: Tensor) -> None:
        nonlocal done
        progress = done / steps
        factor = min(1.0, (progress + 1e-3) / WARMUP) * 0.5 * (1 + math.cos(math.pi * progress))
        group["lr"] = learning_rate * factor
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(group["params"], MAX_GRAD_NORM)
        optimizer.step()
        done += 1
        if on_step is not None:
            on_step(done, steps)

    return step


@torch.no_grad()
def _in_chunks(tower: torch.nn.Module, vectors: Tensor) -> Tensor:
    return torch.cat([tower(chunk) for chunk in vectors.split(ROWS_PER_CHUNK)])
