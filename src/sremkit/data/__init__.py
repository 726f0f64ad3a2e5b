"""Pairs from every format, noise, vocabulary and batches. Knows nothing of models."""

from sremkit.data.batch import Batch
from sremkit.data.batches import Batches
from sremkit.data.formats import FORMATS, read_pairs
from sremkit.data.noise import Noise, load_noise, make_noise, save_noise
from sremkit.data.pairs import Pairs
from sremkit.data.vocabulary import Vocabulary

__all__ = [
    "FORMATS",
    "Batch",
    "Batches",
    "Noise",
    "Pairs",
    "Vocabulary",
    "load_noise",
    "make_noise",
    "read_pairs",
    "save_noise",
]
