"""A judge who only reads the captions, so that everything around the judging is tested in no time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sremkit.audit.verdicts import NOBODY, NoiseRate, Verdicts
from sremkit.data.pairs import Pairs


class StandInJudge:
    """Pairs whose caption says "wrong" score 0.01 (0.001 for "very wrong"), the others 0.99.

    A wrong one would rather have text 0 and image 0.

    Attributes:
        judged: the pairs of every call.
        words: whether single words were to be judged, in the last call.
    """

    TOO_FEW = 3

    def __init__(self, *, interrupt: bool = False) -> None:
        self.interrupt = interrupt
        self.indistinct = False  # when set, there are scores but no noise rate
        self.judged: list[Pairs] = []
        self.words = False

    def __call__(
        self, pairs: Pairs, *, seed: int, folder: Path, progress=None, words: bool = False
    ) -> Verdicts:
        self.words = words
        if self.interrupt:
            raise KeyboardInterrupt
        assert pairs.image_features is not None
        assert pairs.text_features is not None
        pairs.image_features.rows(np.arange(pairs.num_images))  # fails where a number is not finite
        pairs.text_features.rows(np.arange(len(pairs)))
        assert folder.is_dir()
        self.judged.append(pairs)
        m = len(pairs)
        if progress is not None:
            progress("judged pairs", 0, m)
            progress("judged pairs", m, m)
        wrong = np.array(["wrong" in text for text in pairs.texts])
        very = np.array(["very wrong" in text for text in pairs.texts])
        enough = m >= self.TOO_FEW
        return Verdicts(
            mismatch_score=np.where(very, 0.001, np.where(wrong, 0.01, 0.99)) if enough else np.full(m, 0.5),
            is_mismatch=wrong & enough,
            energy_i2t=np.where(wrong, 5, -5).astype(np.float32),
            energy_t2i=np.where(wrong, 4, -4).astype(np.float32),
            rank_i2t=np.where(wrong, 7, 1),
            rank_t2i=np.where(wrong, 8, 2),
            better_text=np.where(wrong, 0, NOBODY),
            better_image=np.where(wrong, 0, NOBODY),
            fold=np.arange(m) % 2 if enough else np.full(m, -1),
            candidates=m,
            noise_rate=NoiseRate(float(wrong.mean()), 0.0, 1.0) if enough and not self.indistinct else None,
            note="" if enough else f"{m} pairs are too few to judge any of them",
        )
