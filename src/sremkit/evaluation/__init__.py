"""What a trained model is worth: recall of retrieval, detection of wrong pairs, the noisy-gradient ratio."""

from sremkit.evaluation.detection import detection_metrics
from sremkit.evaluation.gradients import NoisyGradients, noisy_gradient_ratio
from sremkit.evaluation.recall import retrieval_ranks, retrieval_recall, retrieval_recall_folds

__all__ = [
    "NoisyGradients",
    "detection_metrics",
    "noisy_gradient_ratio",
    "retrieval_ranks",
    "retrieval_recall",
    "retrieval_recall_folds",
]
