"""Why a pair is flagged: nearest right pairs and words that theirs do not have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from made_pairs import from_arrays
from sremkit.audit import neighbors
from sremkit.audit.neighbors import NEIGHBORS, explain_flagged, unsupported_words
from sremkit.data.pairs import Pairs

ANGLES = np.array([0.0, 0.1, 1.0, 2.0, 3.0, 4.0])  # of six images on a circle, one caption each


def on_circle(text_angles: np.ndarray, texts: list[str]) -> Pairs:
    images, captions = (np.stack([np.cos(a), np.sin(a)], axis=1) for a in (ANGLES, text_angles))
    return replace(from_arrays(images, captions, np.arange(6)), texts=texts)


def test_the_nearest_right_pairs_are_named() -> None:
    # Pair 0 has the caption of a place next to image 3. The image nearest to image 0 is 1, and its caption is right.
    texts = ["a cat on snow", "a dog on grass", "a dog in water", "a cat on snow too", "a car", "a bus"]
    pairs = on_circle(np.array([2.1, 0.1, 1.0, 2.0, 3.0, 4.0]), texts)
    flagged = np.array([True] + [False] * 5)
    prob = np.array([0.01, 0.9, 0.9, 0.9, 0.9, 0.9])
    found = explain_flagged(pairs, prob, flagged, np.ones(6, dtype=bool))
    assert list(found) == list(NEIGHBORS)
    assert found["neighbor_text"] == ["a dog on grass"] + [None] * 5
    assert found["neighbor_text_id"][0] == pairs.pair_ids[1]
    assert found["neighbor_image"][0] == pairs.image_ids[3]
    # Image 1 is flagged as well, or likely wrong, or has no score: then it is no example of a right pair.
    for prob_1, flagged_1, scored_1 in ((0.01, True, True), (0.4, False, True), (0.9, False, False)):
        p, f, s = prob.copy(), flagged.copy(), np.ones(6, dtype=bool)
        p[1], f[1], s[1] = prob_1, flagged_1, scored_1
        assert explain_flagged(pairs, p, f, s)["neighbor_text"][0] == "a dog in water"


def test_nothing_is_explained_without_flagged_or_right_pairs() -> None:
    pairs = on_circle(ANGLES, ["x"] * 6)
    for prob, flagged in ((np.full(6, 0.9), np.zeros(6, dtype=bool)), (np.full(6, 0.1), np.ones(6, dtype=bool))):
        found = explain_flagged(pairs, prob, flagged, np.ones(6, dtype=bool))
        assert all(value is None for values in found.values() for value in values)


def test_embeddings_without_captions_have_neighbors_by_id() -> None:
    pairs = on_circle(ANGLES[::-1].copy(), [""] * 6)
    flagged = np.array([True] + [False] * 5)
    found = explain_flagged(pairs, np.where(flagged, 0.1, 0.9), flagged, np.ones(6, dtype=bool), has_texts=False)
    assert found["neighbor_text"][0] is None
    assert found["unsupported_words"][0] is None
    assert found["neighbor_text_id"][0] == pairs.pair_ids[1]


def test_words_are_unsupported_if_no_neighbor_has_them_and_they_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors, "MAX_FREQUENCY", 0.5)
    texts = ["The red dog runs, runs!", "the dog sits", "the cat", "the bird", "the fish"]
    assert unsupported_words(texts, np.array([0]), np.array([[1, 2]])) == ["red, runs"]  # "the" is frequent anyway
    assert unsupported_words(texts, np.array([0]), np.array([[2, 3]])) == ["red, dog, runs"]
    assert unsupported_words(texts, np.array([1]), np.array([[0, 1]])) == [None]
