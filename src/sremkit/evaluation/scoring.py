"""A model's scores on a whole split: every image and every text encoded once, then compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sremkit.data.batches import Batches, TextEncoder
from sremkit.data.pairs import Pairs
from sremkit.evaluation.recall import retrieval_recall
from sremkit.models.matcher import Encoded, Matcher, evaluating

ENCODE_BATCH = 256


class EncodedPairs(NamedTuple):
    """All images and all texts of a split after encoding."""

    images: Encoded  # (n,)
    texts: Encoded  # (m,)


@torch.no_grad()
def encode_pairs(matcher: Matcher, pairs: Pairs, vocabulary: TextEncoder | None = None) -> EncodedPairs:
    """Encode each image and each text exactly once."""
    device = next(matcher.parameters()).device
    batches = Batches(pairs, batch_size=ENCODE_BATCH, vocabulary=vocabulary, shuffle=False)
    image_rows = np.array_split(np.arange(pairs.num_images), math.ceil(pairs.num_images / ENCODE_BATCH))
    with evaluating(matcher):
        image_parts = [matcher.encode_images(batches.take_images(rows).to(device)) for rows in image_rows]
        text_parts = [matcher.encode_texts(batch.to(device)) for batch in batches.epoch(0)]
    return EncodedPairs(Encoded.concatenate(image_parts), Encoded.concatenate(text_parts))


def score_pairs(
    matcher: Matcher,
    pairs: Pairs,
    vocabulary: TextEncoder | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Logits of every image with every text of a split: (n, m) on the CPU."""
    images, texts = encode_pairs(matcher, pairs, vocabulary)
    return matcher.score_all(images, texts, progress=progress)


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

