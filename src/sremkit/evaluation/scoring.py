"""A model's scores on a whole split: every image and every text encoded once, then compared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sremkit.data.batches import Batches, TextEncoder
from sremkit.data.pairs import Pairs
from sremkit.evaluation.recall import retrieval_recall
from sremkit.models.encoding import ENCODE_BATCH, EncodedPairs, encode_everything
from sremkit.models.matcher import Matcher
from sremkit.training.distributed import gather_encoded, gather_replicated


def encode_pairs(
    matcher: Matcher, pairs: Pairs, vocabulary: TextEncoder | None = None, *, shard: tuple[int, int] = (0, 1)
) -> EncodedPairs:
    """Encode each image and each text exactly once.

    Args:
        shard: rank and number of processes, of which each encodes its consecutive part.
    """
    batches = Batches(pairs, batch_size=ENCODE_BATCH, vocabulary=vocabulary, shuffle=False)
    return encode_everything(matcher, batches, shard=shard)


@torch.no_grad()
def score_pairs(
    matcher: Matcher,
    pairs: Pairs,
    vocabulary: TextEncoder | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Logits of every image with every text of a split: (n, m) on the CPU.

    Where several processes train together, each encodes and scores its part and all get the whole.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return matcher.score_all(*encode_pairs(matcher, pairs, vocabulary), progress=progress)
    shard = (dist.get_rank(), dist.get_world_size())
    images, texts = encode_pairs(matcher, pairs, vocabulary, shard=shard)
    own_rows = matcher.score_all(images, gather_encoded(texts), progress=progress)
    device = next(matcher.parameters()).device  # the collectives of CUDA processes want CUDA tensors
    return gather_replicated(own_rows.to(device)).cpu()


def validation_metrics(
    matcher: Matcher, pairs: Pairs, vocabulary: TextEncoder | None = None
) -> dict[str, float]:
    """Recall on a split, with what it takes to notice a collapse: the spread of scores and the guess."""
    scores = score_pairs(matcher, pairs, vocabulary)
    return {
        **retrieval_recall(scores, pairs.image_of_text),
        "score_spread": float(scores.std()),
        "chance_rsum": chance_rsum(pairs.image_of_text),
    }


def chance_rsum(image_of_text: np.ndarray) -> float:
    """About what guessing gives: the sum of both directions' R@1, R@5 and R@10 of a random order."""
    _, captions = np.unique(image_of_text, return_counts=True)
    num_images, num_texts = len(captions), len(image_of_text)
    total = 0.0
    for k in (1, 5, 10):
        missed = (1 - min(k, num_texts) / num_texts) ** captions  # no caption of an image among the first k
        total += 100 * float((1 - missed).mean()) + 100 * min(k / num_images, 1.0)
    return total
