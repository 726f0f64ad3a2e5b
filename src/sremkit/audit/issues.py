"""Issues of a collection other than mismatched pairs: one column of the table for each.

Those of captions are found in caption_issues.py. Images have an issue if they show nothing: tiny ones, and blank ones,
all of one color. Unreadable images are problems of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sremkit.audit.caption_issues import (
    count_unrelated_images,
    find_boilerplate,
    find_conflicts,
    find_duplicate_rows,
    find_other_language,
)
from sremkit.audit.embed import EmbeddedPairs
from sremkit.audit.scoring.cross_fit import Progress
from sremkit.audit.scoring.near_duplicates import caption_groups, image_groups
from sremkit.data.pairs import MISSING, ImageSource, Pairs
from sremkit.errors import DataError
from sremkit.io import read_json_or_empty, write_json

if TYPE_CHECKING:
    from PIL.Image import Image

#: Columns of the table, with their types; null where a pair has no such issue.
ISSUES = {
    "repeated_caption": "int64",
    "conflicting_captions": "bool",
    "duplicate_row_of": "string",
    "boilerplate": "string",
    "other_language": "string",
    "image_issue": "string",
}

TINY, BLANK = "tiny", "blank"
MIN_SIDE = 32  # pixels of the shorter side
MIN_STD = 4.0  # of the gray values, from 0 to 255
SIDE = 64  # to which an image is shrunk first; noise and compression do not matter then


def find_issues(
    embedded: EmbeddedPairs,
    duplicates: Mapping[str, np.ndarray],
    *,
    has_texts: bool = True,
    kept: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, list[Any]]:
    """A value for each embedded pair and issue, None without it.

    Args:
        duplicates: the columns duplicate_text_group and duplicate_image_group, (m,) int64 each.
        kept: JSON file that keeps what was found in the images, which have to be decoded for it.
    """
    pairs = embedded.pairs
    captions, images = duplicates["duplicate_text_group"], duplicates["duplicate_image_group"]
    image_of_text = pairs.image_of_text
    found: dict[str, list[Any]] = {name: [None] * len(pairs) for name in ISSUES}
    assert pairs.image_features is not None
    assert pairs.text_features is not None
    if has_texts:
        vectors = pairs.image_features.rows(np.arange(pairs.num_images)).values
        counts = count_unrelated_images(captions, images, image_of_text, vectors)
        found["repeated_caption"] = [None if count == MISSING else count for count in counts.tolist()]
        found["duplicate_row_of"] = find_duplicate_rows(pairs.pair_ids, captions, images, image_of_text)
        found["boilerplate"] = find_boilerplate(pairs.texts, image_of_text)
        found["other_language"] = find_other_language(pairs.texts)
    text_vectors = pairs.text_features.rows(np.arange(len(pairs))).values
    conflicts = find_conflicts(images, image_of_text, text_vectors)
    found["conflicting_captions"] = [True if conflict else None for conflict in conflicts.tolist()]
    if pairs.images is not None:
        of_image = _kept_image_issues(pairs.images, kept, progress)
        found["image_issue"] = [of_image[image] for image in image_of_text.tolist()]
    return found


def count_issues(issues: Mapping[str, list[Any]] | None) -> dict[str, int]:
    """The number of pairs with each issue."""
    return {name: sum(value is not None for value in values) for name, values in (issues or {}).items()}


def _kept_image_issues(images: ImageSource, kept: Path | None, progress: Progress | None) -> list[str | None]:
    before = {} if kept is None else read_json_or_empty(kept)
    if len(before.get("images", ())) == len(images):
        return before["images"]
    found = find_image_issues(images, progress and partial(progress, "images checked"))
    if kept is not None:
        write_json(kept, {"images": found})
    return found


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


def find_duplicates(pairs: Pairs, has_texts: bool) -> dict[str, np.ndarray]:
    """Columns with the group of near-duplicate captions and images of each pair, (m,) int64, or MISSING."""
    texts = caption_groups(pairs.texts) if has_texts else np.full(len(pairs), MISSING)
    assert pairs.image_features is not None
    images = image_groups(pairs.image_features.rows(np.arange(pairs.num_images)).values)
    return {"duplicate_text_group": texts, "duplicate_image_group": images[pairs.image_of_text]}
