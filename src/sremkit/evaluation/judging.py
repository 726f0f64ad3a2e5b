"""A trained model's verdict on every pair: how it fares against the other pairs of a few random batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sremkit.data.batches import Batches, TextEncoder
from sremkit.data.pairs import Pairs
from sremkit.data.prefetch import prefetched
from sremkit.models.matcher import Matcher, evaluating
from sremkit.objectives import energy


@dataclass(frozen=True, eq=False)
class Judgement:
    """What the model says of each pair, mean over the rounds. A low `match` means a wrong pair."""

    match: np.ndarray  # (m,) in [0, 1]: probability of the pair among its batch, mean of both directions
    energy_i2t: np.ndarray  # (m,)
    energy_t2i: np.ndarray  # (m,)


@torch.no_grad()
def judge_pairs(
    matcher: Matcher,
    pairs: Pairs,
    vocabulary: TextEncoder | None = None,
    *,
    batch_size: int = 128,
    rounds: int = 3,
    seed: int = 0,
) -> Judgement:
    """Judge every pair in `rounds` random batches, without training.

    One batch is a noisy witness, because it may hold an easy or a hard set of negatives; a few are better.
    Repeated images stay out of a batch, so that no pair is beaten by another right one.
    """
    device = next(matcher.parameters()).device
    batches = Batches(pairs, batch_size=batch_size, vocabulary=vocabulary, seed=seed, unique_images=True)
    sums = torch.zeros(3, len(pairs), dtype=torch.float64, device=device)
    with evaluating(matcher):
        for round_ in range(rounds):
            for batch in prefetched(batches, round_, device):
                logits = matcher(batch).double()
                chosen = (logits.softmax(1).diagonal() + logits.softmax(0).diagonal()) / 2
                numbers = torch.stack([chosen, energy(logits), energy(logits.T)])  # (3, b)
                sums[:, batch.pair_id] += numbers
    match, energy_i2t, energy_t2i = (sums / rounds).cpu().numpy()
    return Judgement(match=match, energy_i2t=energy_i2t, energy_t2i=energy_t2i)
