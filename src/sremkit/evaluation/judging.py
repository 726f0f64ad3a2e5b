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

    Where many texts share a picture, some are left alone in a batch, where every pair is perfect; such a batch says
    nothing and does not count. A pair that never met another gets the mean of those that did: it is then neither
    among the wrong ones nor among the right ones, which a fixed number, such as that of guessing, would not ensure.
    """
    device = next(matcher.parameters()).device
    batches = Batches(pairs, batch_size=batch_size, vocabulary=vocabulary, seed=seed, unique_images=True)
    sums = torch.zeros(3, len(pairs), dtype=torch.float64, device=device)
    met = torch.zeros(len(pairs), dtype=torch.float64, device=device)  # in how many rounds it was with others
    with evaluating(matcher):
        for round_ in range(rounds):
            for batch in prefetched(batches, round_, device):
                if len(batch) == 1:
                    continue
                logits = matcher(batch).double()
                chosen = (logits.softmax(1).diagonal() + logits.softmax(0).diagonal()) / 2
                numbers = torch.stack([chosen, energy(logits), energy(logits.T)])  # (3, b)
                sums[:, batch.pair_id] += numbers
                met[batch.pair_id] += 1
    means = sums / met.clamp_min(1)
    alone = met == 0
    if alone.any():
        nothing = means.new_tensor([0.5, 0.0, 0.0])  # for pairs that all share one picture
        means[:, alone] = (nothing if alone.all() else means[:, ~alone].mean(dim=1))[:, None]
    match, energy_i2t, energy_t2i = means.cpu().numpy()
    return Judgement(match=match, energy_i2t=energy_i2t, energy_t2i=energy_t2i)
