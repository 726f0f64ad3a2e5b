"""What goes into scoring and what comes out: settings, vectors of pairs, and a score for each pair."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from torch import Tensor

from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.scoring.near_duplicates import equal_groups, fold_groups, row_keys
from sremkit.data.pairs import MISSING
from sremkit.errors import DataError

REPEATS = ((2_000, 4), (10_000, 2))  # up to so many pairs, so many divisions into folds


@dataclass(frozen=True)
class ScoringSettings:
    """The defaults were chosen on Flickr8k with 20 to 60 % shuffled captions; see docs/lab.md."""

    folds: int = 5  # K of the cross-fitting; each pair is scored by models that were not trained on its image
    repeats: int = 0  # divisions into folds, whose statistics are averaged; 0: by the number of pairs, see REPEATS
    dual_encoders: int = 0  # in the ensemble with ridge CCA, trained from different seeds
    warmup_epochs: int = 3  # of complementary learning, in which all pairs have the same weight
    epochs: int = 4  # in which pairs are weighted by their clean probability
    batch_size: int = 512
    learning_rate: float = 1e-3
    hidden_size: int = 1024
    embed_size: int = 512
    dropout: float = 0.5
    scale: float = 20.0  # initial slope from cosine to logit
    candidates: int = 1024  # pairs in the candidate softmax of every pair of a fold
    negatives: int = 60_000  # about how many random negatives are drawn, over all folds
    seed: int = 0
    zero_shot: bool = False  # images and texts have vectors of one space, whose cosine is one more scorer

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise DataError(f"cross-fitting holds out one fold in turn, so it needs 2 folds or more, got {self.folds}")
        for name in ("epochs", "batch_size", "candidates", "negatives"):
            if getattr(self, name) < 1:
                raise DataError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("dual_encoders", "repeats"):
            if getattr(self, name) < 0:
                raise DataError(f"{name} must be 0 or more, got {getattr(self, name)}")

    def repeats_for(self, num_pairs: int) -> int:
        """Number of divisions for so many pairs: small collections gain most and cost least."""
        if self.repeats or self.dual_encoders:
            return max(self.repeats, 1)
        return next((repeats for largest, repeats in REPEATS if num_pairs <= largest), 1)


@dataclass(frozen=True, eq=False)
class PairVectors:
    """One vector for each image and each text, the pairing, and the pairs of which both vectors are usable."""

    images: Tensor  # (n, d) float32, zero where unreadable
    texts: Tensor  # (m, e) float32
    image_of_text: Tensor  # (m,) int64: pair k is image `image_of_text[k]` with text k
    readable: np.ndarray  # (m,) bool
    label: np.ndarray | None = None  # (m,) int64, of people: 1 match, 0 mismatch, MISSING unknown

    @property
    def is_trusted(self) -> np.ndarray:
        """(m,) bool: pairs that are labelled as matches."""
        return np.zeros(len(self.readable), dtype=bool) if self.label is None else self.label == 1

    @property
    def is_usable(self) -> np.ndarray:
        """(m,) bool: pairs to train on: readable, and not labelled as mismatches."""
        return self.readable if self.label is None else self.readable & (self.label != 0)

    @cached_property
    def num_used(self) -> int:
        """Number of images that have texts."""
        return len(np.unique(self.image_of_text.numpy()))

    @cached_property
    def group_of_image(self) -> np.ndarray:
        """(n,) int64, equal for near-duplicates."""
        return fold_groups(self.images.numpy())

    @cached_property
    def group_of_text(self) -> np.ndarray:
        """(m,) int64, equal for texts with the same vector."""
        return equal_groups(self.texts.numpy())

    @cached_property
    def image_key(self) -> np.ndarray:
        """(n,) int64, a hash of each image's vector."""
        return row_keys(self.images.numpy())

    def fingerprint(self) -> str:
        """Changes when a vector or a pairing changes."""
        digest = hashlib.sha256()
        for tensor in (self.images, self.texts, self.image_of_text):
            digest.update(repr(tuple(tensor.shape)).encode())
            digest.update(tensor.numpy().tobytes())
        if self.label is not None:
            digest.update(self.label.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class NoiseRate:
    """The estimated fraction of pairs that look like an image with another image's caption, with a 95 % interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class NearMismatches:
    """What mismatches that are nearer than the caption of a random image could add to the noise rate."""

    low: float  # of the rate of all mismatches, near ones included: a 95 % interval
    high: float
    by_kind: dict[str, float]  # the upper end for each kind of near negatives
    can_tell: bool  # whether the interval is narrow enough to say how many there are

    def sentence(self) -> str:
        ends = f"at least {100 * self.low:.1f} % and at most {100 * self.high:.1f} %"
        if self.can_tell:
            return f"with captions of similar images, {ends} of the pairs mismatch"
        return (
            f"with captions of similar images it may be more: {ends} of the pairs mismatch; these vectors cannot tell "
            "such near mismatches from right pairs"
        )


@dataclass(frozen=True, eq=False)
class PairScores:
    """The score of each pair, from models that were not trained on that pair."""

    match_prob: np.ndarray  # (m,) in [0, 1]: P(match); the column `match_probability`, low is bad
    energy_i2t: np.ndarray  # (m,) float32: high is bad
    energy_t2i: np.ndarray  # (m,) float32
    rank_i2t: np.ndarray  # (m,) int64, from 1: the text among `candidates` texts, for the pair's image
    rank_t2i: np.ndarray  # (m,) int64, from 1: the image among `candidates` images, for the pair's text
    better_text: np.ndarray  # (m,) int64: row of the pair whose text fits the image better, or MISSING
    better_image: np.ndarray  # (m,) int64: number of the image that fits the text better, or MISSING
    fold: np.ndarray  # (m,) int64: the fold that was held out when this pair was scored; MISSING: not scored
    candidates: int
    noise_rate: NoiseRate | None  # None where the scores are not calibrated, but only order the pairs
    note: str  # a sentence for people where something limits the scores, else empty
    separation: dict[str, list[float]] | None = None  # histograms of pairs and negatives, see `Calibration`
    near: NearMismatches | None = None  # None where near mismatches were not measured

    def __len__(self) -> int:
        return len(self.match_prob)

    @classmethod
    def unscored(cls, count: int, note: str = "", *, candidates: int = 1, rate: NoiseRate | None = None) -> Self:
        """Nothing is known of any pair: each is as likely a match as a mismatch."""
        return cls(
            match_prob=np.full(count, 0.5),
            energy_i2t=np.zeros(count, dtype=np.float32),
            energy_t2i=np.zeros(count, dtype=np.float32),
            rank_i2t=np.ones(count, dtype=np.int64),
            rank_t2i=np.ones(count, dtype=np.int64),
            better_text=np.full(count, MISSING),
            better_image=np.full(count, MISSING),
            fold=np.full(count, MISSING),
            candidates=candidates,
            noise_rate=rate,
            note=note,
        )

    @property
    def is_scored(self) -> np.ndarray:
        """(m,) bool: which pairs have a score. None has one where the data are too few."""
        return (self.fold != MISSING) & np.isfinite(self.match_prob)

    def flag(self, rule: CutoffRule) -> np.ndarray:
        """(m,) bool: which pairs the rule flags as mismatches; none where it needs a noise rate and there is none."""
        if not rule.applies(self.noise_rate):
            return np.zeros(len(self), dtype=bool)
        return rule.flag(np.where(self.is_scored, self.match_prob, np.nan))
