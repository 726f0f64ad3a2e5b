"""Evaluation of trained models: retrieval recall, detection of wrong pairs, the noisy-gradient ratio."""

from sremkit.evaluation.detection import detection_metrics
from sremkit.evaluation.noise_observer import noisy_gradient_ratio, positive_gradients
from sremkit.evaluation.recall import retrieval_ranks, retrieval_recall, retrieval_recall_folds

__all__ = [
    "detection_metrics",
    "noisy_gradient_ratio",
    "positive_gradients",
    "retrieval_ranks",
    "retrieval_recall",
    "retrieval_recall_folds",
]
