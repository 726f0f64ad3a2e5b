"""Minimal encoders, so that extraction is tested without weights."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from PIL.Image import Image

from sremkit.features.encoders import ImageFeatures


class FakeImages:
    """The mean colour, and the four quarters' colours as the grid."""

    description = "mean colours"
    dim = 3
    num_regions = 4

    def __init__(self, *, seconds: float = 0.0) -> None:
        self.seconds = seconds  # that an image takes

    def load(self) -> None:
        pass

    def encode(self, image: Image) -> ImageFeatures:
        time.sleep(self.seconds)
        pixels = np.asarray(image, dtype=np.float32) / 255  # (height, width, 3)
        half_height, half_width = image.height // 2, image.width // 2
        quarters = [
            pixels[rows, columns].mean(axis=(0, 1))
            for rows in (slice(None, half_height), slice(half_height, None))
            for columns in (slice(None, half_width), slice(half_width, None))
        ]
        return ImageFeatures(pooled=pixels.mean(axis=(0, 1)), grid=np.stack(quarters))


class FakeSentences:
    """The number of characters and of words."""

    description = "lengths"
    dim = 2

    def load(self) -> None:
        pass

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[len(text), len(text.split())] for text in texts], dtype=np.float32)
