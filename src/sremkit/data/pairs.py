"""Image-text pairs: what every reader returns and everything after it takes.

`Pairs` holds the texts of one split, the image each is paired with, and sources of images or features. It never
states whether a pair is correct: that truth is in `Noise` and read by evaluation alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from sremkit.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

MISSING = -1  # in arrays of row, image, fold or group numbers: there is none


class FeatureRows(NamedTuple):
    """Features of some items, padded to the most regions."""

    values: np.ndarray  # (k, d) or (k, r, d) float32
    mask: np.ndarray | None  # (k, r) bool, True where a region is present; None for (k, d)


class FeatureSource(Protocol):
    """Feature rows by number, read on demand."""

    @property
    def dim(self) -> int:
        """Dimension d of one feature vector."""

    def __len__(self) -> int: ...

    def rows(self, indices: np.ndarray) -> FeatureRows:
        """The features of these items; NaN or infinity raises `DataError` with file and row."""


class ImageSource(Protocol):
    """Images by number, decoded on demand."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """The image's path or address, for messages and reports."""

    def open(self, index: int) -> Image:
        """The decoded RGB image; an unreadable one raises `DataError` with its name."""


@dataclass(frozen=True)
class Skipped:
    """Rows that a reader left out."""

    places: tuple[tuple[str, str], ...] = ()  # (where, reason) of every row, in order
    examples: tuple[str, ...] = ()  # the first messages

    @property
    def count(self) -> int:
        return len(self.places)

    @property
    def reasons(self) -> Counter[str]:
        return Counter(reason for _, reason in self.places)


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of one split. Pair k is text k with image `image_of_text[k]`."""

    name: str  # of the collection, for messages and run records
    split: str
    pair_ids: Sequence[str]  # (m,) the user's ids, stable and unique
    texts: Sequence[str]  # (m,)
    image_of_text: np.ndarray  # (m,) int64
    image_ids: Sequence[str]  # (n,)
    images: ImageSource | None = None  # (n,) images
    image_features: FeatureSource | None = None  # (n,) rows of (d,) or (r, d)
    text_features: FeatureSource | None = None  # (m,) rows of (d,)
    skipped: Skipped = field(default_factory=Skipped)
    source_rows: np.ndarray | None = None  # (m,) row of the source table, if there is one

    def __post_init__(self) -> None:
        num_texts, num_images = len(self.texts), len(self.image_ids)
        for what, found, expected in (
            ("pair ids", len(self.pair_ids), num_texts),
            ("image numbers", len(self.image_of_text), num_texts),
            ("images", _length(self.images), num_images),
            ("image features", _length(self.image_features), num_images),
            ("text features", _length(self.text_features), num_texts),
            ("source rows", _length(self.source_rows), num_texts),
        ):
            if found is not None and found != expected:
                raise DataError(f"{self.name} ({self.split}): {found} {what} for {expected} rows")
        if num_texts == 0:
            raise DataError(f"{self.name} ({self.split}) holds no pairs; check the path and the split name")
        if self.image_of_text.min() < 0 or self.image_of_text.max() >= num_images:
            raise DataError(
                f"{self.name} ({self.split}): image numbers run from {self.image_of_text.min()} to "
                f"{self.image_of_text.max()}, but there are {num_images} images"
            )
        if len(set(self.pair_ids)) != num_texts:
            twice = Counter(self.pair_ids).most_common(1)[0][0]
            raise DataError(f"{self.name} ({self.split}): the pair id '{twice}' appears twice; ids must be unique")

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def num_images(self) -> int:
        return len(self.image_ids)

    def paired_as(self, image_of_text: np.ndarray) -> Pairs:
        """The same texts paired with other images, such as injected noise."""
        return replace(self, image_of_text=np.asarray(image_of_text, dtype=np.int64))

    def select(self, rows: np.ndarray) -> Pairs:
        """Only these pairs, in this order; images keep their numbers."""
        rows = np.asarray(rows, dtype=np.int64)
        text_features = self.text_features
        return replace(
            self,
            pair_ids=[self.pair_ids[k] for k in rows],
            texts=[self.texts[k] for k in rows],
            image_of_text=self.image_of_text[rows],
            text_features=None if text_features is None else SelectedRows(text_features, rows),
            source_rows=None if self.source_rows is None else self.source_rows[rows],
        )

    def with_texts(self, texts: Sequence[str]) -> Pairs:
        """The same pairs with other texts; their sentence vectors, which would be those of the old ones, are gone."""
        return replace(self, texts=list(texts), text_features=None)

    def select_images(self, images: np.ndarray) -> Pairs:
        """Only these images, renumbered from 0 in this order; every text must be paired with one of them."""
        images = np.asarray(images, dtype=np.int64)
        number = np.full(self.num_images, MISSING)
        number[images] = np.arange(len(images))
        features = self.image_features
        return replace(
            self,
            image_of_text=number[self.image_of_text],
            image_ids=[self.image_ids[k] for k in images],
            images=None if self.images is None else SelectedImages(self.images, images),
            image_features=None if features is None else SelectedRows(features, images),
        )


class SelectedImages:
    """Some images of a source, renumbered from 0."""

    def __init__(self, source: ImageSource, selected: np.ndarray) -> None:
        self.source = source
        self.selected = selected

    def __len__(self) -> int:
        return len(self.selected)

    def name(self, index: int) -> str:
        return self.source.name(int(self.selected[index]))

    def open(self, index: int) -> Image:
        return self.source.open(int(self.selected[index]))


class SelectedRows:
    """Some rows of a feature source, renumbered from 0."""

    def __init__(self, source: FeatureSource, selected: np.ndarray) -> None:
        self.source = source
        self.selected = np.asarray(selected, dtype=np.int64)

    @property
    def dim(self) -> int:
        return self.source.dim

    def __len__(self) -> int:
        return len(self.selected)

    def rows(self, indices: np.ndarray) -> FeatureRows:
        return self.source.rows(self.selected[indices])


def _length(source: object) -> int | None:
    return None if source is None else len(source)  # type: ignore[arg-type]
