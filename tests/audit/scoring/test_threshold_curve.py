"""Expected precision and recall over the threshold, by hand."""

from __future__ import annotations

import numpy as np

from sremkit.audit.scoring.threshold_curve import ThresholdCurve


def test_precision_and_recall_of_flagging_a_pair_and_all_lower_ones() -> None:
    score = np.array([0.5, 0.0, 1.0, 0.25])  # 1 - score: 0.5, 1, 0, 0.75; in all 2.25
    curve = ThresholdCurve([score[:2], score[2:]])
    precision, recall = curve.at(np.array([0.0, 0.25, 0.5, 1.0, np.nan]))
    np.testing.assert_allclose(precision, [1, 1.75 / 2, 2.25 / 3, 2.25 / 4, np.nan])
    np.testing.assert_allclose(recall, [1 / 2.25, 1.75 / 2.25, 1, 1, np.nan])
    points = curve.points()
    assert points["flagged"][:2] == [1, 1]
    assert points["flagged"][-1] == 4
    assert points["expected_precision"][25] == 0.875


def test_no_scores_give_no_precision() -> None:
    assert ThresholdCurve([]).points()["expected_precision"] == [None] * 101
