"""What an audit says of every pair. Made by judging, read by tables, reports and exports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NOBODY = -1  # in `better_text` and `better_image`: nothing fits better than what is given


@dataclass(frozen=True, eq=False)
class NoiseRate:
    """The estimated share of wrong pairs, with an interval that holds the true one 95 times of 100."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Verdicts:
    """One verdict a pair, each from a model that has not been trained on that pair."""

    mismatch_score: np.ndarray  # (m,) in [0, 1]: how likely the pair is right; low is bad
    is_mismatch: np.ndarray  # (m,) bool
    energy_i2t: np.ndarray  # (m,) float32: high is bad
    energy_t2i: np.ndarray  # (m,) float32
    rank_i2t: np.ndarray  # (m,) int64, from 1: the text among `candidates` texts, for the pair's image
    rank_t2i: np.ndarray  # (m,) int64, from 1: the image among `candidates` images, for the pair's text
    better_text: np.ndarray  # (m,) int64: row of the pair whose text fits the image better, or NOBODY
    better_image: np.ndarray  # (m,) int64: number of the image that fits the text better, or NOBODY
    fold: np.ndarray  # (m,) int64: the part of the data that was left out when this pair was judged
    candidates: int
    noise_rate: NoiseRate | None  # None where the data say too little
    note: str  # a sentence for people where something limits the verdicts, else empty

    def __len__(self) -> int:
        return len(self.mismatch_score)
