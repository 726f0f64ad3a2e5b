"""How a pair fares against others: its log-probability, energies and ranks among a fixed set of candidates.

    F_ij = sum over witnesses k of a_k cos_k(image i, text j)
    log P = log softmax of the pair among itself and the candidates, once over texts and once over images
    statistic = log P (i2t) + log P (t2i)
    E = -log sum exp F over the same                                                          [eq:energy]

The candidates are the same for every pair of a fold; those that share the pair's picture stay out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.verdicts import NOBODY

SHARPNESS = 3.5  # of F: how many units one standard deviation among wrong pairs is
PAIRS_AT_ONCE = 8192
LOW = -1e9


class Witness(Protocol):
    """Maps images and texts to unit vectors in one space."""

    def encode_images(self, images: Tensor) -> Tensor: ...

    def encode_texts(self, texts: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Standing:
    """How each of some pairs stands among the candidates."""

    statistic: np.ndarray  # (p,) float64: high is good
    energy_i2t: np.ndarray  # (p,) float32
    energy_t2i: np.ndarray
    rank_i2t: np.ndarray  # (p,) int64, from 1
    rank_t2i: np.ndarray


class Competition:
    """Compares pairs with the candidates of their fold.

    Args:
        image_emb: (n, d) and text_emb (m, d): their products are the logits F.
        image_of_text: (m,)
        candidates: (c,) rows of the competing pairs.
    """

    def __init__(
        self, image_emb: Tensor, text_emb: Tensor, image_of_text: Tensor, candidates: Tensor
    ) -> None:
        self.image_emb = image_emb
        self.text_emb = text_emb
        self.candidate_texts = candidates
        self.candidate_images = image_of_text[candidates]  # (c,)
        self._texts = text_emb[candidates].T.contiguous()  # (d, c)
        self._images = image_emb[self.candidate_images].T.contiguous()  # (d, c)

    def standing(self, images: np.ndarray, texts: np.ndarray, hidden: np.ndarray | None = None) -> Standing:
        """How image `images[k]` with text `texts[k]` stands, for every k.

        Args:
            hidden: an image that does not compete for text k, or NOBODY.
        """
        hidden = np.full(len(images), NOBODY) if hidden is None else hidden
        parts = []
        for start in range(0, len(images), PAIRS_AT_ONCE):
            some = slice(start, start + PAIRS_AT_ONCE)
            parts.append(self._part(*(torch.from_numpy(a[some]) for a in (images, texts, hidden))))
        if not parts:
            return Standing(*(np.zeros(0) for _ in fields(Standing)))
        return Standing(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Standing)))

    def _part(self, images: Tensor, texts: Tensor, hidden: Tensor) -> Standing:
        given = (self.image_emb[images] * self.text_emb[texts]).sum(dim=1)  # (p,)
        same_picture = images[:, None] == self.candidate_images  # (p, c)
        same_text = texts[:, None] == self.candidate_texts
        hidden_picture = hidden[:, None] == self.candidate_images
        log_probs, energies, ranks = [], [], []
        for queries, others, absent in (
            (self.image_emb[images], self._texts, same_picture | same_text),
            (self.text_emb[texts], self._images, same_picture | hidden_picture),
        ):
            logits = (queries @ others).masked_fill_(absent, LOW)  # (p, c)
            total = torch.logaddexp(given, logits.logsumexp(dim=1))
            log_probs.append(given - total)
            energies.append((-total).numpy())  # [eq:energy]
            ranks.append(1 + (logits >= given[:, None]).sum(dim=1).numpy())  # a tie counts against the pair
        statistic = (log_probs[0].double() + log_probs[1]).numpy()
        return Standing(statistic, *energies, *ranks)


def join_witnesses(
    witnesses: Sequence[Witness],
    images: Tensor,
    texts: Tensor,
    given: tuple[np.ndarray, np.ndarray],
    wrong: tuple[np.ndarray, np.ndarray],
) -> tuple[Tensor, Tensor]:
    """One vector for each image and text whose products are F.

    A witness has a say in proportion to how far it sets the given pairs apart from surely wrong ones, in
    standard deviations of the latter; one that tells nothing is not heard.

    Args:
        given: image numbers and text rows of given pairs; `wrong` likewise of surely wrong ones.
    """
    encoded = [(witness.encode_images(images), witness.encode_texts(texts)) for witness in witnesses]
    return join_encoded(encoded, measure_witnesses(encoded, given, wrong))


@dataclass(frozen=True)
class Say:
    """How much one witness counts: its vectors are divided by `divisor` and multiplied by `factor`."""

    divisor: float
    factor: float


def measure_witnesses(
    encoded: Sequence[tuple[Tensor, Tensor]],
    given: tuple[np.ndarray, np.ndarray],
    wrong: tuple[np.ndarray, np.ndarray],
) -> list[Say]:
    """The say of each witness, from what it made of images and texts; arguments as for `join_witnesses`."""
    spreads, weights = [], []
    for image_emb, text_emb in encoded:
        of_given, of_wrong = ((image_emb[i] * text_emb[t]).sum(dim=1).double() for i, t in (given, wrong))
        # Without a wrong pair, or where all score alike, there is nothing to measure by.
        spread = max(float(of_wrong.std()), 1e-6) if len(of_wrong) > 1 else 1.0
        distance = float(of_given.mean() - of_wrong.mean()) if len(of_wrong) > 1 else 0.0
        weights.append(max(distance / spread, 0.0))
        spreads.append(spread)
    total = max(sum(weights), 1e-9)
    return [
        Say(spread**0.5, (SHARPNESS * weight / total) ** 0.5)
        for spread, weight in zip(spreads, weights, strict=True)
    ]


def join_encoded(encoded: Sequence[tuple[Tensor, Tensor]], says: Sequence[Say]) -> tuple[Tensor, Tensor]:
    """The vectors of all witnesses side by side, each scaled by its say."""
    images, texts = (
        torch.cat(
            [say.factor * (pair[k] / say.divisor) for pair, say in zip(encoded, says, strict=True)], dim=1
        )
        for k in (0, 1)
    )
    return images, texts
