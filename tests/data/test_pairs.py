"""Pairs are validated, and can be selected and re-paired."""

from __future__ import annotations

import numpy as np
import pytest

from sremkit.data.features import ArrayFeatures
from sremkit.data.pairs import Pairs, Problems
from sremkit.errors import DataError


def make(**changes) -> Pairs:
    fields = dict(
        name="tiny",
        split="train",
        pair_ids=["a", "b", "c"],
        texts=["one", "two", "three"],
        image_of_text=np.array([0, 0, 1]),
        image_ids=["x", "y"],
        text_features=ArrayFeatures(np.arange(3.0).reshape(3, 1)),
    )
    return Pairs(**{**fields, **changes})


def test_counts() -> None:
    assert (len(make()), make().num_images) == (3, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pair_ids": ["a", "b", "a"]}, "the pair id 'a' appears twice"),
        ({"pair_ids": ["a", "b"]}, "2 pair ids for 3 rows"),
        ({"image_of_text": np.array([0, 0, 2])}, "image numbers run from 0 to 2, but there are 2 images"),
        ({"image_of_text": np.array([0, -1, 1])}, "from -1 to 1"),
        ({"image_features": ArrayFeatures(np.zeros((3, 1)))}, "3 image features for 2 rows"),
        (
            {"pair_ids": [], "texts": [], "image_of_text": np.array([]), "text_features": None},
            "holds no pairs; check the path",
        ),
    ],
)
def test_inconsistent_sizes_are_clear_errors(changes: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(**changes)


def test_selecting_keeps_text_features_with_their_texts() -> None:
    some = make().select(np.array([2, 0]))
    assert some.pair_ids == ["c", "a"]
    assert some.image_of_text.tolist() == [1, 0]
    assert some.text_features.rows(np.array([0, 1])).values.tolist() == [[2.0], [0.0]]


def test_re_pairing_changes_the_images_only() -> None:
    pairs = make()
    noisy = pairs.paired_as(np.array([1, 0, 0]))
    assert noisy.image_of_text.tolist() == [1, 0, 0]
    assert noisy.texts == pairs.texts
    assert pairs.image_of_text.tolist() == [0, 0, 1]


def test_problems_raise_or_count() -> None:
    with pytest.raises(DataError, match=r"caps\.txt, line 3: empty caption; write one, or pass on_error='skip'"):
        Problems("raise").report("caps.txt, line 3", "empty caption", "write one")
    problems = Problems("skip")
    for line in range(30):
        problems.report(f"caps.txt, line {line}", "empty caption", "write one")
    skipped = problems.skipped()
    assert skipped.count == 30
    assert dict(skipped.reasons) == {"empty caption": 30}
    assert len(skipped.examples) == 20
    assert skipped.examples[0] == "caps.txt, line 0: empty caption; write one"
