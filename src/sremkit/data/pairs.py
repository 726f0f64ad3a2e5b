"""Image-text pairs: what every reader returns and everything after it takes.

`Pairs` holds the texts of one split, the image each is paired with, and sources of images or features. It never
states whether a pair is correct: that truth is in `Noise` and read by evaluation alone. Readers collect pairs in a
`PairBuilder`, which checks them, and bad rows in `Problems`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from sremkit.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

MISSING = -1  # in arrays of row, image, fold or group numbers: there is none

OnError = Literal["raise", "skip"]
Problem = tuple[str, str]  # reason and remedy


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


class Problems:
    """Collects bad rows: raises at the first one, or counts them so that the reader continues."""

    MAX_EXAMPLES = 20

    def __init__(self, on_error: OnError = "raise") -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', got '{on_error}'")
        self.on_error = on_error
        self._examples: list[str] = []
        self._places: list[tuple[str, str]] = []

    def report(self, where: str, reason: str, remedy: str) -> None:
        """Report one bad row: `where` is file and row, `reason` is short so that equal ones can be counted."""
        where = printable(where)
        sentence = printable(f"{where}: {reason}; {remedy}")
        if self.on_error == "raise":
            raise DataError(f"{sentence}, or pass on_error='skip' to leave such rows out")
        self._places.append((where, reason))
        if len(self._examples) < self.MAX_EXAMPLES:
            self._examples.append(sentence)

    def skipped(self) -> Skipped:
        return Skipped(tuple(self._places), tuple(self._examples))


class PairBuilder:
    """Collects valid pairs and reports the others; images are numbered in the order of their first pair.

    Attributes:
        rows: source row of each pair, for its text features.
        image_rows: source row of each image's first pair, for its image features.
    """

    def __init__(self, problems: Problems | None = None) -> None:
        self.problems = problems or Problems()
        self.rows: list[int] = []
        self.image_rows: list[int] = []
        self._texts: list[str] = []
        self._pair_ids: dict[str, None] = {}  # an ordered set
        self._image_of_text: list[int] = []
        self._image_numbers: dict[str, int] = {}

    def add(self, where: str, *, pair_id: str, text: object, image_id: str, row: int = MISSING) -> bool:
        """Add this pair, or report what is wrong with it and return False."""
        problem = self.try_add(pair_id=pair_id, text=text, image_id=image_id, row=row)
        if problem is not None:
            self.problems.report(where, *problem)
        return problem is None

    def try_add(self, *, pair_id: str, text: object, image_id: str, row: int = MISSING) -> Problem | None:
        """Add this pair, or return what is wrong with it."""
        if text is not None and not isinstance(text, str):
            return "the caption is not text", f"write words instead of {text!r:.40}"
        text = (text or "").strip()
        if not text:
            return "the caption is empty", "write one or remove the pair"
        for name, value in (("caption", text), ("id", pair_id), ("name of the image", image_id)):
            if printable(value) != value:
                return f"the {name} is not valid Unicode", "it holds half of a surrogate pair; save it as UTF-8"
        if pair_id in self._pair_ids:
            return "the id has appeared before", f"give one of the pairs '{pair_id}' another id"
        number = self._image_numbers.setdefault(image_id, len(self._image_numbers))
        if number == len(self.image_rows):
            self.image_rows.append(row)
        self._pair_ids[pair_id] = None
        self._texts.append(text)
        self._image_of_text.append(number)
        self.rows.append(row)
        return None

    @property
    def image_ids(self) -> list[str]:
        return list(self._image_numbers)

    def build(self, *, name: str, split: str, **sources: Any) -> Pairs:
        """The collected pairs; `sources` are the images and features that `Pairs` takes."""
        skipped = self.problems.skipped()
        if not self._texts and skipped.count:
            reasons = ", ".join(f"{reason}: {count:,}" for reason, count in skipped.reasons.most_common(3))
            raise DataError(
                f"{name} ({split}) holds no pairs that can be used; {skipped.count:,} were left out ({reasons}), "
                f"the first because {skipped.examples[0]}"
            )
        return Pairs(
            name=name,
            split=split,
            pair_ids=list(self._pair_ids),
            texts=self._texts,
            image_of_text=np.array(self._image_of_text, dtype=np.int64),
            image_ids=self.image_ids,
            skipped=skipped,
            source_rows=None if MISSING in self.rows else np.array(self.rows, dtype=np.int64),
            **sources,
        )


def printable(text: str) -> str:
    """The text, with escapes for what UTF-8 cannot encode: half a surrogate pair, or bytes of a file name."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
