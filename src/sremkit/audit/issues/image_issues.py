"""Images that show nothing: tiny ones, and blank ones, all of one color. Unreadable ones are problems of their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from sremkit.data.pairs import ImageSource
from sremkit.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

TINY, BLANK = "tiny", "blank"
MIN_SIDE = 32  # pixels of the shorter side
MIN_STD = 4.0  # of the gray values, from 0 to 255
SIDE = 64  # to which an image is shrunk first; noise and compression do not matter then


def find_image_issues(images: ImageSource, progress: Callable[[int, int], None] | None = None) -> list[str | None]:
    """For each image what is wrong with it, or None; every image is decoded once."""
    found: list[str | None] = []
    for k in range(len(images)):
        try:
            found.append(image_issue(images.open(k)))
        except DataError:
            found.append(None)
        if progress is not None:
            progress(k + 1, len(images))
    return found


def image_issue(image: Image) -> str | None:
    """What is wrong with an image, or None."""
    if min(image.size) < MIN_SIDE:
        return TINY
    gray = image.convert("L")
    gray.thumbnail((SIDE, SIDE))
    return BLANK if float(np.asarray(gray, dtype=np.float32).std()) < MIN_STD else None
