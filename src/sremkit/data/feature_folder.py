"""A folder of extracted features: what `srem features` writes and training reads.

    features.json       what there is, of which pairs, by which encoders; written last, so with it all is there
    images.jsonl        a line for each image row: id, split, and why its picture could not be read, if so
    pairs.jsonl         a line for each text row: id, split, text, and the row of its image
    pooled.npy          (images, 1280) float16, one vector an image; rows of unreadable pictures are NaN
    grid.npy            (images, 36, 1280) float16
    sentences.npy       (texts, 384) float16
    skipped.tsv         the unreadable pictures once more, for people
    extraction.jsonl    only while the extraction is not finished: how far it is

Ids and texts may hold any character, tabs and line breaks too, hence JSON and not a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sremkit.data.features import MappedFeatures
from sremkit.data.pairs import ImageSource, Pairs, Problems
from sremkit.data.splits import choose_split
from sremkit.data.text_files import read_json
from sremkit.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

MANIFEST, JOURNAL = "features.json", "extraction.jsonl"
IMAGES, PAIRS, SKIPPED = "images.jsonl", "pairs.jsonl", "skipped.tsv"
IMAGE_ARRAYS, TEXT_ARRAYS = ("pooled", "grid"), ("sentences",)


class FeatureFolder:
    """A finished folder of features, opened for reading; the arrays stay on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.path / MANIFEST).is_file():
            if (self.path / JOURNAL).is_file():
                raise DataError(
                    f"the extraction in {self.path} is not finished; go on with the same `srem features` command"
                )
            raise DataError(f"{self.path} holds no {MANIFEST}; make it with `srem features`")
        self.manifest: dict[str, Any] = read_json(self.path / MANIFEST)

    @property
    def arrays(self) -> list[str]:
        """Which kinds of features there are."""
        return list(self.manifest["arrays"])

    def read(self, split: str, features: str | None = None) -> Pairs:
        """The pairs of one split whose picture could be read, or of all where there are no splits.

        Args:
            features: "pooled" or "grid"; by default the one there is, and "pooled" where both are.
        """
        found = choose_split(split, self.manifest["splits"], self.path) if self._has_splits else split
        image_rows, image_ids, problem_of_image = self._images(found)
        number_of_row = {row: number for number, row in enumerate(image_rows)}
        text_rows, pair_ids, texts, image_of_text = [], [], [], []
        problems = Problems("skip")
        for row, pair in self._lines(PAIRS, found):
            if pair["image"] in problem_of_image:
                reason = problem_of_image[pair["image"]]
                problems.found(f"pair {pair['id']}", "the picture could not be read", reason)
                continue
            text_rows.append(row)
            pair_ids.append(pair["id"])
            texts.append(pair["text"])
            image_of_text.append(number_of_row[pair["image"]])
        return Pairs(
            name=self.manifest["name"],
            split=found,
            pair_ids=pair_ids,
            texts=texts,
            image_of_text=np.array(image_of_text, dtype=np.int64),
            image_ids=image_ids,
            image_features=self._source(self._image_array(features), image_rows),
            text_features=self._source("sentences" if "sentences" in self.arrays else None, text_rows),
            skipped=problems.skipped(),
        )

    def read_with_pictures(self, source: Pairs, features: str | None = None) -> Pairs:
        """As `read`, with the pictures of the pairs that the features were extracted from."""
        own = self.read(source.split, features)
        number_of_id = {image_id: number for number, image_id in enumerate(source.image_ids)}
        if source.images is None or not set(own.image_ids) <= number_of_id.keys():
            raise DataError(
                f"{self.path} was not extracted from {source.name} ({source.split}): their images differ"
            )
        rows = np.array([number_of_id[image_id] for image_id in own.image_ids], dtype=np.int64)
        return replace(own, images=SelectedImages(source.images, rows))

    @property
    def _has_splits(self) -> bool:
        return self.manifest["has_splits"]

    def _images(self, split: str) -> tuple[list[int], list[str], dict[int, str]]:
        """Rows and ids of the readable images, and what is wrong with each of the others."""
        rows, ids, problem_of_image = [], [], {}
        for row, image in self._lines(IMAGES, split):
            if "problem" in image:
                problem_of_image[row] = image["problem"]
            else:
                rows.append(row)
                ids.append(image["id"])
        return rows, ids, problem_of_image

    def _lines(self, file: str, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        path = self.path / file
        try:
            with path.open(encoding="ascii") as lines:
                for row, line in enumerate(lines):
                    entry = json.loads(line)
                    if not self._has_splits or entry["split"] == split:
                        yield row, entry
        except (OSError, ValueError, KeyError) as cause:
            raise DataError(
                f"{path} cannot be read ({cause}); remove the folder and extract again"
            ) from cause

    def _image_array(self, features: str | None) -> str | None:
        there = [name for name in IMAGE_ARRAYS if name in self.arrays]
        if features is None:
            return there[0] if there else None
        if features not in there:
            has = f"it has: {', '.join(there)}" if there else "it has none"
            raise DataError(f"{self.path} holds no image features called '{features}'; {has}")
        return features

    def _source(self, array: str | None, rows: list[int]) -> MappedFeatures | None:
        if array is None:
            return None
        path = self.path / f"{array}.npy"
        mapped = MappedFeatures(path, row_of_item=np.array(rows, dtype=np.int64))
        expected = self.manifest["arrays"][array]["shape"][0]
        if mapped.num_file_rows != expected:
            raise DataError(
                f"{path} has {mapped.num_file_rows} rows instead of {expected}; remove the folder and extract again"
            )
        return mapped


class SelectedImages:
    """Some pictures of a source, renumbered from 0."""

    def __init__(self, source: ImageSource, rows: np.ndarray) -> None:
        self.source = source
        self.selected = rows

    def __len__(self) -> int:
        return len(self.selected)

    def name(self, index: int) -> str:
        return self.source.name(int(self.selected[index]))

    def open(self, index: int) -> Image:
        return self.source.open(int(self.selected[index]))
