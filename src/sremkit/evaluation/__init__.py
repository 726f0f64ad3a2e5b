"""What a trained model is worth: recall of retrieval, and detection of wrong pairs."""

from sremkit.evaluation.detection import detection_metrics
from sremkit.evaluation.recall import retrieval_ranks, retrieval_recall, retrieval_recall_folds

__all__ = ["detection_metrics", "retrieval_ranks", "retrieval_recall", "retrieval_recall_folds"]
