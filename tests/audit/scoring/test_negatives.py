"""Negatives are never given pairs: random ones meet true images as rarely as mismatches do, near ones are near."""

from __future__ import annotations

import numpy as np
import pytest

from sremkit.audit.scoring.negatives import NEAR_KINDS, draw_near_negatives, draw_negatives
from sremkit.data.pairs import MISSING

COUNT = 200


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
    same = (image_of_text, image_of_text, image_of_text)
    negatives = draw_negatives(rows, *same, rounds=5, in_fold=1 / 3, seed=0)
    is_masked = negatives.masked != MISSING
    assert is_masked.mean() == pytest.approx(2 / 3, abs=0.03)
    assert (negatives.masked[is_masked] == image_of_text[negatives.text[is_masked]]).all()
    other = draw_negatives(rows, *same, rounds=5, in_fold=1 / 3, seed=0, repeat=1)
    np.testing.assert_array_equal(other.image, negatives.image)
    np.testing.assert_array_equal(other.text, negatives.text)
    assert (other.masked != negatives.masked).mean() == pytest.approx(4 / 9, abs=0.03)


def drawn(group_of_image: np.ndarray | None = None, group_of_text: np.ndarray | None = None):
    """On a circle, image and text k lie at angle k."""
    angle = np.linspace(0, 2 * np.pi, COUNT, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    alone = np.arange(COUNT)
    groups = (alone if group is None else group for group in (group_of_image, group_of_text))
    return draw_near_negatives(circle, circle, alone, *groups, seed=0)


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.minimum(abs(a - b), COUNT - abs(a - b))


def test_near_negatives_are_near_the_pair_they_are_made_of() -> None:
    found = drawn()
    by_text, by_image, absent = (found.kind == kind for kind in range(len(NEAR_KINDS)))
    assert distance(found.text, found.source)[by_text].max() <= 5
    assert distance(found.image, found.source)[by_image].max() <= 5
    assert distance(found.image, found.source)[absent].mean() > 20
    np.testing.assert_array_equal(found.image[by_text], found.source[by_text])
    np.testing.assert_array_equal(found.text[by_image], found.source[by_image])


def test_only_for_an_absent_partner_the_given_image_is_masked() -> None:
    found = drawn()
    absent = found.kind == NEAR_KINDS.index("partner absent")
    np.testing.assert_array_equal(found.masked[absent], found.source[absent])
    assert (found.masked[~absent] == MISSING).all()


def test_no_negative_is_a_given_pair_nor_one_of_near_duplicates_or_equal_texts() -> None:
    assert (drawn().image != drawn().text).all()
    pairs_of_two = np.arange(COUNT) // 2
    duplicates = drawn(group_of_image=pairs_of_two)
    assert (duplicates.image // 2 != duplicates.text // 2).all()
    equal = drawn(group_of_text=pairs_of_two)
    assert (equal.image // 2 != equal.text // 2).all()
