"""From a recipe to a finished run: reads the data, builds the model and the method, trains, evaluates.

This is where the parts meet. The truth about injected noise goes to the observer and the report only.
"""

from sremkit.experiment.finished_runs import evaluate_runs, load_best
from sremkit.experiment.memory import peak_memory_mb
from sremkit.experiment.preparation import Prepared, pairs_for_model, pixel_reading, prepare, with_whole_paths
from sremkit.experiment.training_run import describe_noise, make_batches, make_trainer, save_pretrained, train

__all__ = [
    "Prepared",
    "describe_noise",
    "evaluate_runs",
    "load_best",
    "make_batches",
    "make_trainer",
    "pairs_for_model",
    "peak_memory_mb",
    "pixel_reading",
    "prepare",
    "save_pretrained",
    "train",
    "with_whole_paths",
]
