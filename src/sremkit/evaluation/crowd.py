"""Agreement with people: Flickr8k's crowd said of 47,830 picture-caption combinations whether they fit.

A combination counts as fitting when most votes say yes, and as not fitting when most say no; ties are left out.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from torch import Tensor

from sremkit.data.pairs import Pairs
from sremkit.evaluation.detection import detection_metrics

FILE = "crowd_judgements.tsv"


def crowd_agreement(scores: Tensor | np.ndarray, pairs: Pairs, file: Path) -> float:
    """AUROC of the scores (n, m) against the majority of the crowd, over the combinations of this split."""
    scores = np.asarray(scores)
    rows, columns, fits = crowd_verdicts(pairs, file)
    return detection_metrics(~fits, scores[rows, columns])["auroc"]


def crowd_verdicts(pairs: Pairs, file: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image numbers, text numbers and whether most people said that the two fit."""
    image_number = {name: k for k, name in enumerate(pairs.image_ids)}
    text_number = {name: k for k, name in enumerate(pairs.pair_ids)}
    rows, columns, fits = [], [], []
    with file.open(encoding="utf-8", newline="") as lines:
        for image, caption, _, yes, no in csv.reader(lines, delimiter="\t"):
            if yes != no and image in image_number and caption in text_number:
                rows.append(image_number[image])
                columns.append(text_number[caption])
                fits.append(int(yes) > int(no))
    return np.array(rows), np.array(columns), np.array(fits, dtype=bool)
