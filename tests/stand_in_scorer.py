"""A scorer that only reads the captions, so that everything around the scoring is tested in no time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sremkit.audit.scoring.labels import apply_labels
from sremkit.audit.scoring.types import NoiseRate, PairScores, ScoringSettings
from sremkit.data.pairs import MISSING, Pairs


class StandInScorer:
    """Pairs whose caption contains "wrong" score 0.01 (0.001 for "very wrong"), the others 0.99.

    For a wrong one, text 0 and image 0 fit better.

    Attributes:
        scored: the pairs of every call.
        settings: those of the last call.
    """

    MIN_PAIRS = 3

    def __init__(self, *, interrupt: bool = False) -> None:
        self.interrupt = interrupt
        self.rank_only = False  # when set, there are scores but no noise rate
        self.scored: list[Pairs] = []
        self.settings = ScoringSettings()

    def __call__(
        self, pairs: Pairs, settings: ScoringSettings, *, folder: Path, label=None, progress=None
    ) -> PairScores:
        self.settings = settings
        if self.interrupt:
            raise KeyboardInterrupt
        assert pairs.image_features is not None
        assert pairs.text_features is not None
        pairs.image_features.rows(np.arange(pairs.num_images))  # fails where a number is not finite
        pairs.text_features.rows(np.arange(len(pairs)))
        assert folder.is_dir()
        self.scored.append(pairs)
        m = len(pairs)
        if progress is not None:
            progress("scored pairs", 0, m)
            progress("scored pairs", m, m)
        wrong = np.array(["wrong" in text for text in pairs.texts])
        very = np.array(["very wrong" in text for text in pairs.texts])
        enough = m >= self.MIN_PAIRS
        scores = PairScores(
            match_prob=np.where(very, 0.001, np.where(wrong, 0.01, 0.99)) if enough else np.full(m, 0.5),
            energy_i2t=np.where(wrong, 5, -5).astype(np.float32),
            energy_t2i=np.where(wrong, 4, -4).astype(np.float32),
            rank_i2t=np.where(wrong, 7, 1),
            rank_t2i=np.where(wrong, 8, 2),
            better_text=np.where(wrong, 0, MISSING),
            better_image=np.where(wrong, 0, MISSING),
            fold=np.arange(m) % 2 if enough else np.full(m, MISSING),
            candidates=m,
            noise_rate=NoiseRate(float(wrong.mean()), 0.0, 1.0) if enough and not self.rank_only else None,
            note="" if enough else f"{m} pairs are too few to score any of them",
        )
        return scores if label is None else apply_labels(scores, label)
