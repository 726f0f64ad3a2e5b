"""A collection as numbered rows: all images of all splits one after another, and likewise all texts."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from sremkit.data.all_splits import Collection
from sremkit.data.feature_folder import IMAGES, PAIRS, SKIPPED
from sremkit.data.pairs import ImageSource, Pairs
from sremkit.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


class Rows:
    """Which image and which text each row of the arrays belongs to."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.splits: list[Pairs] = list(collection.pairs.values())
        self.num_images = sum(pairs.num_images for pairs in self.splits)
        self.texts = [text for pairs in self.splits for text in pairs.texts]

    def pictures(self) -> JoinedImages:
        """Where the pictures of all rows come from."""
        sources = []
        for pairs in self.splits:
            if pairs.images is None:
                raise DataError(
                    f"{pairs.name} ({pairs.split}) has no pictures, only texts or features; "
                    "say where the pictures lie, or extract sentences only"
                )
            sources.append(pairs.images)
        return JoinedImages(sources)

    def fingerprint(self) -> str:
        """A hash of all ids, texts and their order; pictures are known by their ids, not by their content."""
        digest = hashlib.sha256()
        for line in (*self._image_lines({}), *self._pair_lines()):
            digest.update(line.encode())
        return digest.hexdigest()[:16]

    def tables(self, problems: Mapping[int, str]) -> dict[str, Iterator[str]]:
        """The lines of the tables beside the arrays; `problems` says what was wrong with unreadable images."""
        return {
            IMAGES: self._image_lines(problems),
            PAIRS: self._pair_lines(),
            SKIPPED: self._skipped_lines(problems),
        }

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the pairs."""
        splits = {
            name: {
                "images": pairs.num_images,
                "texts": len(pairs),
                "left_out": dict(pairs.skipped.reasons),  # by the reader, before anything was extracted
            }
            for name, pairs in self.collection.pairs.items()
        }
        name = self.splits[0].name
        return {"name": name, "has_splits": self.collection.has_splits, "splits": splits}

    def _image_lines(self, problems: Mapping[int, str]) -> Iterator[str]:
        row = 0
        for split, pairs in self.collection.pairs.items():
            for image_id in pairs.image_ids:
                problem = {"problem": problems[row]} if row in problems else {}
                yield json.dumps({"id": image_id, "split": split, **problem}) + "\n"
                row += 1

    def _pair_lines(self) -> Iterator[str]:
        first = 0
        for split, pairs in self.collection.pairs.items():
            for k, pair_id in enumerate(pairs.pair_ids):
                image = first + int(pairs.image_of_text[k])
                entry = {"id": pair_id, "split": split, "image": image, "text": pairs.texts[k]}
                yield json.dumps(entry) + "\n"
            first += pairs.num_images

    def _skipped_lines(self, problems: Mapping[int, str]) -> Iterator[str]:
        yield "row\timage\tsplit\tproblem\n"
        row = 0
        for split, pairs in self.collection.pairs.items():
            for image_id in pairs.image_ids:
                if row in problems:
                    cells = (str(row), image_id, split, problems[row])
                    yield "\t".join(" ".join(cell.split()) for cell in cells) + "\n"
                row += 1


class JoinedImages:
    """The pictures of several sources under consecutive numbers."""

    def __init__(self, sources: list[ImageSource]) -> None:
        self.sources = sources
        self._starts = [0, *accumulate(len(source) for source in sources)]

    def __len__(self) -> int:
        return self._starts[-1]

    def name(self, index: int) -> str:
        source, number = self.place(index)
        return source.name(number)

    def open(self, index: int) -> Image:
        source, number = self.place(index)
        return source.open(number)

    def place(self, index: int) -> tuple[ImageSource, int]:
        """Which source a picture comes from, and its number there."""
        part = bisect_right(self._starts, index) - 1
        return self.sources[part], index - self._starts[part]
