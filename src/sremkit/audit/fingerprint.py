"""What an audit is about, as a short hash: it tells whether work from an earlier call may be used again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable

import numpy as np

from sremkit.audit.own_rows import OwnRows
from sremkit.data.feature_folder import SelectedImages
from sremkit.data.images import FileImages, TarImages
from sremkit.data.pairs import FeatureSource, ImageSource, Pairs
from sremkit.errors import DataError
from sremkit.features.earlier import content_hash
from sremkit.features.rows import JoinedImages

ROWS_AT_ONCE = 1024


def fingerprint_pairs(pairs: Pairs) -> str:
    """A hash of ids, texts and pairing, and of each picture's size and date."""
    digest = hashlib.sha256()
    for number, image_id in enumerate(pairs.image_ids):
        seen = None if pairs.images is None else picture_state(pairs.images, number)
        digest.update(json.dumps([image_id, seen]).encode())
    for pair_id, text, image in zip(pairs.pair_ids, pairs.texts, pairs.image_of_text, strict=True):
        digest.update(json.dumps([pair_id, text, int(image)]).encode())
    return digest.hexdigest()


def fingerprint_rows(rows: OwnRows) -> str:
    """A hash of everything else that goes into the table: the user's columns, and what is wrong with rows."""
    digest = hashlib.sha256(rows.pair_of_row.tobytes())
    digest.update(json.dumps([[row, *problem] for row, problem in rows.problems.items()]).encode())
    for name, values in rows.columns.items():
        plain = values if isinstance(values, list) else values.to_pylist()
        digest.update(json.dumps([name, plain], default=repr).encode())
    return digest.hexdigest()[:16]


def picture_state(images: ImageSource, number: int) -> list[int | str] | None:
    """What tells a picture from another one under the same name without reading it; None where nothing does."""
    if isinstance(images, JoinedImages):
        return picture_state(*images.place(number))
    if isinstance(images, SelectedImages):
        return picture_state(images.source, int(images.selected[number]))
    if isinstance(images, TarImages):
        member = images.member(number)
        return [*_file_state(member.tar), member.offset, member.size]
    if isinstance(images, FileImages):
        return _file_state(images.paths[number])
    return None


def picture_content(images: ImageSource, number: int) -> str | None:
    """A hash that stays as long as the picture's file does, whatever it is called in the table; None where none can."""
    if isinstance(images, JoinedImages):
        return picture_content(*images.place(number))
    if isinstance(images, SelectedImages):
        return picture_content(images.source, int(images.selected[number]))
    state = picture_state(images, number)
    if state is None or state == ["missing"]:
        return None
    if isinstance(images, TarImages):
        return content_hash(os.path.abspath(images.member(number).tar), *state)
    assert isinstance(images, FileImages)
    return content_hash(os.path.abspath(images.paths[number]), *state)


def _file_state(path: str) -> list[int | str]:
    try:
        state = os.stat(path)
    except OSError:
        return ["missing"]
    return [state.st_size, state.st_mtime_ns]


def read_features_once(
    features: FeatureSource, progress: Callable[[int, int], None] | None = None
) -> tuple[str, dict[int, str]]:
    """One pass over features that were given: a hash of all of them, and what is wrong with rows that are bad."""
    digest = hashlib.sha256()
    problems: dict[int, str] = {}
    if progress is not None:
        progress(0, len(features))
    for start in range(0, len(features), ROWS_AT_ONCE):
        rows = np.arange(start, min(start + ROWS_AT_ONCE, len(features)))
        try:
            digest.update(features.rows(rows).values.tobytes())
        except DataError:
            for row in rows.tolist():
                try:
                    digest.update(features.rows(np.array([row])).values.tobytes())
                except DataError as problem:
                    problems[row] = str(problem)
                    digest.update(b"bad")
        if progress is not None:
            progress(int(rows[-1]) + 1, len(features))
    return digest.hexdigest(), problems
