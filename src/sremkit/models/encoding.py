"""All images and all texts of some pairs, each encoded exactly once."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from sremkit.data.batches import Batches
from sremkit.models.matcher import Encoded, Matcher, evaluating

ENCODE_BATCH = 256


class EncodedPairs(NamedTuple):
    """All images and all texts after encoding."""

    images: Encoded  # (n,)
    texts: Encoded  # (m,)


@torch.no_grad()
def encode_everything(
    matcher: Matcher,
    batches: Batches,
    *,
    text_rows: np.ndarray | None = None,
    shard: tuple[int, int] = (0, 1),
) -> EncodedPairs:
    """Encode each image and each text once, in evaluation mode, where the matcher lies.

    Args:
        text_rows: these texts only.
        shard: rank and number of processes, of which each encodes its consecutive part.
    """
    device = next(matcher.parameters()).device
    pairs = batches.pairs
    if text_rows is None:
        text_rows = np.arange(len(pairs))
    with evaluating(matcher):
        image_parts = [
            matcher.encode_images(batches.take_images(rows).to(device))
            for rows in _pieces(np.arange(pairs.num_images), shard)
        ]
        text_parts = [
            matcher.encode_texts(batches.take_texts(rows).to(device)) for rows in _pieces(text_rows, shard)
        ]
    return EncodedPairs(Encoded.concatenate(image_parts), Encoded.concatenate(text_parts))


def _pieces(rows: np.ndarray, shard: tuple[int, int]) -> list[np.ndarray]:
    """The rows of this shard in pieces that fit a batch; at least one piece, even where it is empty."""
    rank, world = shard
    own = np.array_split(rows, world)[rank]
    return np.array_split(own, max(1, math.ceil(len(own) / ENCODE_BATCH)))
