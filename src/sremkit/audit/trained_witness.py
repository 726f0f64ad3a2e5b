"""The trained witnesses, each a small dual encoder, trained with SREM-plus on the noisy pairs themselves.

SREM-plus remembers over the epochs how each pair fares and believes it accordingly. What it believes of the
training pairs also tells the linear witness which of them to listen to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.judging_settings import JudgingSettings
from sremkit.audit.vectors import Vectors
from sremkit.data.batch import Batch
from sremkit.data.order import batch_order
from sremkit.methods import Surroundings
from sremkit.methods.srem_plus import SREMPlus
from sremkit.models import build_matcher
from sremkit.models.dual import DualEncoder

CLIP = 2.0
FEWEST_STEPS = 150  # of little data, more passes are made until there are so many
MOST_PASSES = 8  # but at most so many times the usual number
RISING = 0.05  # share of the steps in which the learning rate rises
ENCODE_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class TrainedWitness:
    """A trained dual encoder, and how far it came to believe each training pair."""

    matcher: DualEncoder
    belief: Tensor  # (pairs trained on,) in [0, 1]

    def encode_images(self, images: Tensor) -> Tensor:
        return _in_parts(self.matcher.image_tower, images)

    def encode_texts(self, texts: Tensor) -> Tensor:
        return _in_parts(self.matcher.text_tower, texts)


def train_witness(
    vectors: Vectors,
    rows: np.ndarray,
    settings: JudgingSettings,
    *,
    seed: int,
    on_step: Callable[[int, int], None] | None = None,
) -> TrainedWitness:
    """Train on these pairs. The global generator is left as it was found."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # weights and dropout
        return _train(vectors, torch.from_numpy(rows), settings, seed, on_step)


def _train(
    vectors: Vectors,
    rows: Tensor,
    settings: JudgingSettings,
    seed: int,
    on_step: Callable[[int, int], None] | None,
) -> TrainedWitness:
    matcher = build_matcher(
        "dual",
        image_dim=vectors.images.shape[1],
        text_dim=vectors.texts.shape[1],
        hidden_size=settings.hidden_size,
        embed_size=settings.embed_size,
        dropout=settings.dropout,
        scale=settings.scale,
    ).train()
    assert isinstance(matcher, DualEncoder)
    # An audit is there to doubt: of little data, wrong pairs may be learnt before the warm-up ends.
    method = SREMPlus(complementary_weight=0.0, least_resemblance=0.0)
    method.start(Surroundings(len(rows), torch.device("cpu")))
    optimizer = torch.optim.Adam(matcher.parameters(), lr=settings.learning_rate, fused=True)
    warmup, total, steps_an_epoch, batch_size = _passes(len(rows), settings)
    steps, step = total * steps_an_epoch, 0
    for epoch in range(total):
        method.begin_epoch(epoch, warmup=epoch < warmup)
        for batch in _batches(vectors, rows, batch_size, seed=seed, epoch=epoch):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * rise_and_fall(step / steps)
            optimizer.zero_grad(set_to_none=True)
            method.loss(matcher, batch, warmup=epoch < warmup).total.backward()
            torch.nn.utils.clip_grad_norm_(matcher.parameters(), CLIP)
            optimizer.step()
            step += 1
            if on_step is not None:
                on_step(step, steps)
        method.finish_epoch()
    return TrainedWitness(matcher.eval(), method.belief.clone())


def _passes(num_pairs: int, settings: JudgingSettings) -> tuple[int, int, int, int]:
    """Warm-up epochs, all epochs, batches an epoch and pairs a batch."""
    # Half a hundred batches an epoch at least, where there are pairs for it: a memory wants to be refreshed.
    batch_size = max(min(settings.batch_size, num_pairs // 8), min(32, num_pairs))
    steps_an_epoch = max(num_pairs // batch_size, 1)
    usual = settings.warmup_epochs + settings.epochs
    more = min(max(FEWEST_STEPS / (usual * steps_an_epoch), 1.0), MOST_PASSES)
    warmup = math.ceil(settings.warmup_epochs * more)
    return warmup, warmup + math.ceil(settings.epochs * more), steps_an_epoch, batch_size


def _batches(vectors: Vectors, rows: Tensor, batch_size: int, *, seed: int, epoch: int) -> Iterator[Batch]:
    for numbers in batch_order(len(rows), batch_size, seed=seed, epoch=epoch, shuffle=True, drop_last=True):
        pair_id = torch.from_numpy(numbers)
        pair_rows = rows[pair_id]
        image_id = vectors.image_of_text[pair_rows]
        yield Batch(
            pair_id=pair_id,
            image_id=image_id,
            images=vectors.images[image_id],
            sentences=vectors.texts[pair_rows],
        )


def rise_and_fall(done: float) -> float:
    """The share of the learning rate: a short rise, then half a cosine down to nothing."""
    return min(1.0, (done + 1e-3) / RISING) * 0.5 * (1 + math.cos(math.pi * done))


@torch.no_grad()
def _in_parts(tower: torch.nn.Module, vectors: Tensor) -> Tensor:
    return torch.cat([tower(part) for part in vectors.split(ENCODE_AT_ONCE)])
