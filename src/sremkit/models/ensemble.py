"""An ensemble of two networks: concatenated encodings, and the mean of two similarities.

    S = (σ(a) + σ(b)) / 2,   logit(S) = log(σ(a) + σ(b)) - log(σ(-a) + σ(-b))

with a, b the logits of the two. The logit ranks as the mean does, and is computed in log space, so that
neither very large nor very small similarities become ties.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.models.matcher import Encoded, Matcher


def logit_of_mean(*logits: Tensor) -> Tensor:
    """The logit whose sigmoid is the mean of the logits' sigmoids, accurate however large or small they are."""
    log_match = reduce(torch.logaddexp, [F.logsigmoid(each) for each in logits])
    log_mismatch = reduce(torch.logaddexp, [F.logsigmoid(-each) for each in logits])
    return log_match - log_mismatch


class Ensemble(Matcher):
    """Two networks that encode and compare separately; the similarity is the mean of theirs."""

    def pair(self) -> tuple[Matcher, Matcher]:
        raise NotImplementedError

    def encode_images(self, batch: Batch) -> Encoded:
        return concatenate_width(*(network.encode_images(batch) for network in self.pair()))

    def encode_texts(self, batch: Batch) -> Encoded:
        return concatenate_width(*(network.encode_texts(batch) for network in self.pair()))

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        """The logit of the mean similarity: (n, m)."""
        inputs = zip(self.pair(), split_width(images), split_width(texts), strict=True)
        return logit_of_mean(*(network.compare(own_images, own_texts) for network, own_images, own_texts in inputs))

    def kernels_support(self, batch: Batch) -> bool:
        return all(network.kernels_support(batch) for network in self.pair())

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        return self.pair()[1].floats_per_pair(split_width(images)[1], split_width(texts)[1])


def concatenate_width(first: Encoded, second: Encoded) -> Encoded:
    """Two encodings of the same items as one of twice the width; mask and bounds are those of the first."""
    joined: dict[str, Any] = {
        name: torch.cat([getattr(first, name), getattr(second, name)], dim=-1) for name in _vector_names(first)
    }
    return replace(first, **joined)


def split_width(both: Encoded) -> list[Encoded]:
    """The inverse of `concatenate_width`."""
    halves = {name: getattr(both, name).chunk(2, dim=-1) for name in _vector_names(both)}
    return [replace(both, **{name: half[k] for name, half in halves.items()}) for k in (0, 1)]


def _vector_names(encoded: Encoded) -> list[str]:
    return [name for name in ("local", "pooled") if getattr(encoded, name) is not None]
