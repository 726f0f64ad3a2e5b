"""Scores of a trained model: every image of a split against every text, and every given pair among random batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sremkit.data.batches import Batches, Tokenizer
from sremkit.data.pairs import Pairs
from sremkit.data.prefetch import prefetch
from sremkit.evaluation.recall import retrieval_recall
from sremkit.models.matcher import ENCODE_BATCH, EncodedPairs, Matcher, encode_everything, evaluating
from sremkit.objectives import energy
from sremkit.training.distributed import gather_encoded, gather_replicated


def encode_pairs(
    matcher: Matcher, pairs: Pairs, vocabulary: Tokenizer | None = None, *, shard: tuple[int, int] = (0, 1)
) -> EncodedPairs:
    """Encode each image and each text exactly once.

    Args:
        shard: rank and world size; each process encodes its consecutive part.
    """
    batches = Batches(pairs, batch_size=ENCODE_BATCH, vocabulary=vocabulary, shuffle=False)
    return encode_everything(matcher, batches, shard=shard)


@torch.no_grad()
def score_matrix(
    matcher: Matcher,
    pairs: Pairs,
    vocabulary: Tokenizer | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Logits of every image with every text of a split: (n, m) on the CPU.

    In distributed training each process encodes and scores its part, and all get the whole matrix.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return matcher.score_all(*encode_pairs(matcher, pairs, vocabulary), progress=progress)
    shard = (dist.get_rank(), dist.get_world_size())
    images, texts = encode_pairs(matcher, pairs, vocabulary, shard=shard)
    own_rows = matcher.score_all(images, gather_encoded(texts), progress=progress)
    device = next(matcher.parameters()).device  # NCCL needs CUDA tensors
    return gather_replicated(own_rows.to(device)).cpu()


def validation_metrics(matcher: Matcher, pairs: Pairs, vocabulary: Tokenizer | None = None) -> dict[str, float]:
    """Recall on a split, with two numbers that reveal a collapse: the spread of scores and the chance level."""
    scores = score_matrix(matcher, pairs, vocabulary)
    return {
        **retrieval_recall(scores, pairs.image_of_text),
        "score_spread": float(scores.std()),
        "chance_rsum": chance_rsum(pairs.image_of_text),
    }


def chance_rsum(image_of_text: np.ndarray) -> float:
    """The approximate sum of recalls of a random order: R@1, R@5 and R@10 of both directions."""
    _, captions = np.unique(image_of_text, return_counts=True)
    num_images, num_texts = len(captions), len(image_of_text)
    total = 0.0
    for k in (1, 5, 10):
        missed = (1 - min(k, num_texts) / num_texts) ** captions  # no caption of an image among the first k
        total += 100 * float((1 - missed).mean()) + 100 * min(k / num_images, 1.0)
    return total


@dataclass(frozen=True, eq=False)
class InBatchScores:
    """Scores of each pair among the others of its batch, mean over the rounds. A low `match` means a wrong pair."""

    match: np.ndarray  # (m,) in [0, 1]: softmax probability of the pair, mean of both directions
    energy_i2t: np.ndarray  # (m,)
    energy_t2i: np.ndarray  # (m,)


@torch.no_grad()
def in_batch_scores(
    matcher: Matcher,
    pairs: Pairs,
    vocabulary: Tokenizer | None = None,
    *,
    batch_size: int = 128,
    rounds: int = 3,
    seed: int = 0,
) -> InBatchScores:
    """Score every given pair in `rounds` random batches, without training.

    The mean over rounds reduces the variance from easy and hard sets of negatives. Images are unique within a batch, so
    that no pair competes with another correct one.

    If many texts share an image, some batches hold a single pair, which has probability 1; they are skipped. A pair
    without any other batch gets the mean of the other pairs, which ranks it neither with the wrong nor with the correct
    ones, as a constant could.
    """
    device = next(matcher.parameters()).device
    batches = Batches(pairs, batch_size=batch_size, vocabulary=vocabulary, seed=seed, unique_images=True)
    sums = torch.zeros(3, len(pairs), dtype=torch.float64, device=device)
    num_rounds = torch.zeros(len(pairs), dtype=torch.float64, device=device)  # with other pairs in the batch
    with evaluating(matcher):
        for round_ in range(rounds):
            for batch in prefetch(batches, batches.own_order(round_), device):
                if len(batch) == 1:
                    continue
                logits = matcher(batch).double()
                match = (logits.softmax(1).diagonal() + logits.softmax(0).diagonal()) / 2
                sums[:, batch.pair_id] += torch.stack([match, energy(logits), energy(logits.T)])  # (3, b)
                num_rounds[batch.pair_id] += 1
    means = sums / num_rounds.clamp_min(1)
    unscored = num_rounds == 0
    if unscored.any():
        uninformative = means.new_tensor([0.5, 0.0, 0.0])  # if all pairs share one image
        means[:, unscored] = (uninformative if unscored.all() else means[:, ~unscored].mean(dim=1))[:, None]
    return InBatchScores(*means.cpu().numpy())
