"""What is found of the subtle mismatches of scenes is counted as it should be."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.audit_scenes import as_vectors, found, scenes_row
from sremkit.audit.scoring.types import ScoringSettings
from sremkit.data.generated.scenes import SceneTruth, mismatched_scenes

pytest.importorskip("PIL")


def test_the_shares_found_in_a_worked_example() -> None:
    # In order of score: nine shuffled, a right one, two subtle ones, eight right ones. After the right one
    # the precision is 9/10, after the subtle ones 10/11 and 11/12, then 11/13 < 0.9: all wrong ones are found.
    is_noisy = np.array([True] * 9 + [False] + [True] * 2 + [False] * 8)
    is_subtle = np.zeros(20, dtype=bool)
    is_subtle[10:12] = True
    score = np.linspace(0.0, 1.0, 20)
    measured = found(score, SceneTruth(is_noisy, is_subtle))
    assert (measured["shuffled_recall"], measured["subtle_recall"]) == (1.0, 1.0)
    assert measured["shuffled_auroc"] == 1.0
    assert measured["subtle_auroc"] == pytest.approx(8 / 9)  # each beats eight of the nine right ones
    # Asked for 0.9, the audit calls while the mean of 1 - k/19 is 0.9 or more: 1 - (n - 1)/38, so n = 4.
    assert measured["shuffled_recall_called"] == pytest.approx(4 / 9)
    assert measured["subtle_recall_called"] == 0.0
    assert measured["precision_called"] == 1.0
    assert np.isnan(measured["subtle_precision_called"])  # nothing but shuffled ones was called


def test_the_precision_of_calls_among_pairs_that_are_not_shuffled() -> None:
    # Asked for 0.9, the audit calls four: the mean of 1 - score is 3.9 / 4, and with the fifth 3.9 / 5. Two of
    # them are shuffled, one is subtle, one is right.
    is_noisy = np.array([True, True, True, False, False, True])
    is_subtle = np.array([False, False, True, False, False, True])
    measured = found(np.array([0.0, 0, 0, 0.1, 1, 1]), SceneTruth(is_noisy, is_subtle))
    assert measured["precision_called"] == 3 / 4
    assert measured["subtle_precision_called"] == 1 / 2
    assert measured["subtle_recall_called"] == 1 / 2


def test_an_audit_that_calls_nothing_finds_nothing() -> None:
    truth = SceneTruth(np.array([True, False]), np.array([False, False]))
    measured = found(np.array([0.0, 1.0]), truth, calls=False)
    assert np.isnan(measured["subtle_recall"])  # there are none
    assert measured["shuffled_recall"] == 1.0
    assert measured["shuffled_recall_called"] == 0.0


def test_equal_images_and_equal_words_have_equal_vectors() -> None:
    pairs, _ = mismatched_scenes(40, rate=0.2, subtle_share=0.5, seed=3)
    vectors = as_vectors(pairs)
    texts = vectors.text_features.rows(np.arange(len(pairs))).values
    np.testing.assert_allclose(np.linalg.norm(texts, axis=1), 1, rtol=1e-5)
    assert vectors.image_features.rows(np.array([0])).values.ndim == 2
    # The components keep the distances of the patches: with 40 images there are no more than 40 of them.
    patches = pairs.image_features.rows(np.arange(40)).values.reshape(40, -1).astype(np.float64)
    images = vectors.image_features.rows(np.arange(40)).values.astype(np.float64)
    far, near = (np.linalg.norm(x[:20] - x[20:], axis=1) for x in (patches, images))
    np.testing.assert_allclose(far / near, far[0] / near[0], rtol=1e-3)


def test_a_row_states_what_was_scored() -> None:
    row = scenes_row(
        60,
        ScoringSettings(
            folds=2,
            dual_encoders=1,
            epochs=1,
            hidden_size=32,
            embed_size=16,
            candidates=32,
            negatives=300,
        ),
    )
    assert row["pairs"] == 300
    assert row["true_rate"] == pytest.approx(0.4, abs=0.02)
    assert 0 <= row["subtle_recall"] <= 1
