"""The vectors of all pairs, held in memory; pairs whose vectors cannot be read are set aside."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sremkit.data.pairs import FeatureSource, Pairs
from sremkit.errors import DataError

READ_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Vectors:
    """One vector for each image and text, and the pairs of which both could be read."""

    images: Tensor  # (n, d) float32, zero where unreadable
    texts: Tensor  # (m, e) float32
    image_of_text: Tensor  # (m,) int64
    readable: np.ndarray  # (m,) bool

    def readable_images(self) -> np.ndarray:
        """Numbers of the images of readable pairs, rising."""
        return np.unique(self.image_of_text.numpy()[self.readable])

    def fingerprint(self) -> str:
        """Changes when a vector or a pairing changes."""
        digest = hashlib.sha256()
        for tensor in (self.images, self.texts, self.image_of_text):
            digest.update(repr(tuple(tensor.shape)).encode())
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()


def read_vectors(pairs: Pairs) -> Vectors:
    """Read every vector once; of images with regions the mean region is taken."""
    for source, name in ((pairs.image_features, "image"), (pairs.text_features, "text")):
        if source is None:
            raise DataError(
                f"{pairs.name} has no {name} features, and judging compares vectors; "
                "extract them first with `srem features`"
            )
    assert pairs.image_features is not None
    assert pairs.text_features is not None
    images, good_images = _read_all(pairs.image_features)
    texts, good_texts = _read_all(pairs.text_features)
    readable = good_texts & good_images[pairs.image_of_text]
    image_of_text = torch.from_numpy(np.asarray(pairs.image_of_text, dtype=np.int64).copy())
    return Vectors(images, texts, image_of_text, readable)


def _read_all(source: FeatureSource) -> tuple[Tensor, np.ndarray]:
    values = np.zeros((len(source), source.dim), dtype=np.float32)
    good = np.ones(len(source), dtype=bool)
    for start in range(0, len(source), READ_AT_ONCE):
        rows = np.arange(start, min(start + READ_AT_ONCE, len(source)))
        try:
            values[rows] = _read(source, rows)
        except DataError:  # some row is NaN or missing: find out which
            for row in rows:
                try:
                    values[row] = _read(source, np.array([row]))[0]
                except DataError:
                    good[row] = False
    return torch.from_numpy(values), good


def _read(source: FeatureSource, rows: np.ndarray) -> np.ndarray:
    values, mask = source.rows(rows)
    if values.ndim == 2:
        return values
    present = np.ones(values.shape[:2], dtype=bool) if mask is None else mask  # (k, r)
    return (values * present[:, :, None]).sum(axis=1) / np.maximum(present.sum(axis=1), 1)[:, None]
