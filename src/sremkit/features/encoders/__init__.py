"""Frozen encoders of images and texts, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image


class ImageFeatures(NamedTuple):
    """Features of one image."""

    pooled: np.ndarray  # (d,) float32, mean over the grid
    grid: np.ndarray  # (r, d) float32, row by row from the top left


class ImageEncoder(Protocol):
    """Encodes images one by one."""

    description: str  # identifies the model; features of different descriptions are never mixed
    dim: int
    num_regions: int  # rows of `ImageFeatures.grid`

    def load(self) -> None:
        """Load the weights, so that forked processes share them and a missing package is reported early."""

    def encode(self, image: Image) -> ImageFeatures: ...


class TextEncoder(Protocol):
    """Encodes texts as one vector each."""

    description: str
    dim: int

    def load(self) -> None: ...

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors (k, d) float32."""
