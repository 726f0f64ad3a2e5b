"""Agreement with people: whose votes count, for which picture and caption, and as what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sremkit.evaluation.crowd import crowd_agreement, crowd_verdicts
from training import tiny

# Picture, caption, share of yes, votes for yes and for no. Pictures are called 0, 1, 2, captions pair-000 to pair-005.
VOTES = [
    ("0", "pair-000", "1.0", "3", "0"),  # fits
    ("0", "pair-003", "0.333", "1", "2"),  # does not
    ("1", "pair-000", "0.5", "2", "2"),  # a tie
    ("2", "pair-001", "0.667", "10", "9"),  # fits; as words, "10" is before "9"
    ("2", "pair-005", "0.0", "0", "3"),  # does not
    ("elsewhere", "pair-001", "1.0", "3", "0"),  # another split's picture
    ("1", "elsewhere", "1.0", "3", "0"),  # and caption
]


@pytest.fixture
def votes(tmp_path: Path) -> Path:
    file = tmp_path / "votes.tsv"
    file.write_text("".join("\t".join(line) + "\n" for line in VOTES), encoding="utf-8")
    return file


def test_the_majority_decides_and_ties_and_strangers_are_left_out(votes: Path) -> None:
    rows, columns, fits = crowd_verdicts(tiny.tiny_pairs(num_images=3), votes)
    assert rows.tolist() == [0, 0, 2, 2]
    assert columns.tolist() == [0, 3, 1, 5]
    assert fits.tolist() == [True, False, True, False]


def test_agreement_is_the_share_of_fitting_combinations_that_score_above_others(votes: Path) -> None:
    # Fitting score 4 and 2, others 3 and 1: of four comparisons 4 > 3, 4 > 1 and 2 > 1 are right, 2 > 3 is not.
    scores = np.full((3, 6), 9.0)
    scores[0, 0], scores[2, 1], scores[0, 3], scores[2, 5] = 4.0, 2.0, 3.0, 1.0
    pairs = tiny.tiny_pairs(num_images=3)
    assert crowd_agreement(scores, pairs, votes) == pytest.approx(0.75)
    assert crowd_agreement(torch.from_numpy(-scores), pairs, votes) == pytest.approx(0.25)
