"""Random negatives are no pairs of the data, and meet true images as rarely as mismatched pairs do."""

from __future__ import annotations

import numpy as np
import pytest

from sremkit.audit.scoring.random_negatives import draw_negatives
from sremkit.data.pairs import MISSING


def test_negatives_are_no_pairs_of_the_data_and_stay_in_the_fold() -> None:
    rng = np.random.default_rng(0)
    image_of_text = rng.integers(0, 12, 80)
    group_of_image = np.arange(12) // 2
    group_of_text = np.arange(80) // 4  # every text comes four times
    rows = np.flatnonzero(image_of_text < 6)
    negatives = draw_negatives(rows, image_of_text, group_of_image, group_of_text, rounds=20, seed=0)
    assert len(negatives.text) > 100
    assert set(negatives.text) <= set(rows)
    assert set(negatives.image) <= set(range(6))
    given = {(group_of_text[r], group_of_image[image_of_text[r]]) for r in rows}
    assert not given & {
        (group_of_text[t], group_of_image[i]) for t, i in zip(negatives.text, negatives.image, strict=True)
    }


def test_the_given_image_is_masked_as_often_as_it_would_be_in_another_fold() -> None:
    image_of_text = np.arange(3000)
    rows = np.arange(1000)  # a third of the images is in this fold
    negatives = draw_negatives(rows, image_of_text, image_of_text, image_of_text, rounds=5, seed=0)
    is_masked = negatives.masked != MISSING
    assert is_masked.mean() == pytest.approx(2 / 3, abs=0.03)
    assert (negatives.masked[is_masked] == image_of_text[negatives.text[is_masked]]).all()
