"""Rows that repeat an earlier row: the same caption on the same, or nearly the same, image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sremkit.data.pairs import MISSING


def find_duplicate_rows(
    pair_ids: Sequence[str], caption_group: np.ndarray, image_group: np.ndarray, image_of_text: np.ndarray
) -> list[str | None]:
    """For each pair the id of the first equal one, or None.

    Args:
        caption_group: (m,) int64, equal for equal captions, or MISSING.
        image_group: (m,) int64, equal for near-duplicate images, or MISSING.
    """
    image = np.where(image_group == MISSING, -1 - image_of_text, image_group)
    first: dict[tuple[int, int], int] = {}
    found: list[str | None] = [None] * len(pair_ids)
    for k in np.flatnonzero(caption_group != MISSING).tolist():
        earliest = first.setdefault((int(caption_group[k]), int(image[k])), k)
        if earliest != k:
            found[k] = pair_ids[earliest]
    return found
