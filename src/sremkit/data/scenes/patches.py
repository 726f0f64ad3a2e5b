"""Region features of a picture: a 6×6 grid of patches, each its pixels and where it is.

A patch has d = 204 numbers: 8 · 8 · 3 pixel values, then 6 that mark its row and 6 that mark its column.
Without the marks a model that takes regions as a set could not know left from right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

GRID = 6  # patches along one side
PATCH = 8  # pixels along one side of a patch
NUM_PATCHES = GRID**2
PATCH_DIM = PATCH * PATCH * 3 + 2 * GRID
DRAWN_AT = 2 * GRID * PATCH  # pixels; the picture is drawn at twice the size and reduced

# Fixed, so that a scene has the same features in any collection: about the mean and spread of all pixels.
PIXEL_MEAN = 0.8
PIXEL_SPREAD = 0.2

_ROW_AND_COLUMN = np.concatenate(
    [np.repeat(np.eye(GRID), GRID, axis=0), np.tile(np.eye(GRID), (GRID, 1))], axis=1
).astype(np.float32)  # (36, 12)


def patch_features(picture: Image) -> np.ndarray:
    """The features of a picture of `DRAWN_AT` pixels square, (36, 204) float32, row by row."""
    pixels = np.asarray(picture.reduce(2), dtype=np.float32) / 255  # (48, 48, 3)
    values = (pixels - PIXEL_MEAN) / PIXEL_SPREAD
    patches = values.reshape(GRID, PATCH, GRID, PATCH, 3).swapaxes(1, 2)  # (6, 6, 8, 8, 3)
    return np.concatenate([patches.reshape(NUM_PATCHES, -1), _ROW_AND_COLUMN], axis=1)  # (36, 204)
