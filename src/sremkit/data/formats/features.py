"""Folders of extracted features, which `srem features` writes.

    features.json       manifest: arrays, encoders, fingerprint of the pairs; written last, marks a complete folder
    images.jsonl        a line for each image row: id, split, and the problem of an unreadable image
    image_files.jsonl   a line for each image row: its file, in an archive with offset and size; null if not known
    pairs.jsonl         a line for each text row: id, split, text, and the row of its image
    pooled.npy          (images, 1280) float16; rows of unreadable images are NaN
    grid.npy            (images, 36, 1280) float16
    sentences.npy       (texts, 384) float16
    skipped.tsv         unreadable images as a table for people
    extraction.jsonl    journal of an unfinished extraction

JSON, because ids and texts may contain tabs and line breaks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.data.features import MappedFeatures
from sremkit.data.format_utils import choose_split
from sremkit.data.formats import EXAMPLE_TEXTS, FORMATS
from sremkit.data.images import FileImages, TarImages, TarMember
from sremkit.data.pairs import ImageSource, OnError, Pairs, Problems
from sremkit.errors import DataError
from sremkit.io import check_version, first_line, read_json

VERSION = 1  # of the folder

MANIFEST, JOURNAL = "features.json", "extraction.jsonl"
IMAGES, IMAGE_FILES, PAIRS, SKIPPED = "images.jsonl", "image_files.jsonl", "pairs.jsonl", "skipped.tsv"
IMAGE_ARRAYS, TEXT_ARRAYS = ("pooled", "grid"), ("sentences",)


@FORMATS.register("features")
class Features:
    """Folder that `srem features` wrote: features.json, images.jsonl, pairs.jsonl and .npy files."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        return (path / MANIFEST).is_file() or (path / JOURNAL).is_file()

    @staticmethod
    def read(path: Path, *, split: str, on_error: OnError = "raise", features: str | None = None) -> Pairs:
        """Read one split, or everything if the source had no splits.

        Args:
            on_error: has no effect; pairs with an unreadable image, which the extraction has reported, are always
                left out and counted in `skipped`.
            features: "pooled" or "grid"; by default what the folder holds, "pooled" if both.
        """
        Problems(on_error)  # checks the option
        manifest = read_manifest(path)
        found = choose_split(split, manifest["splits"], path) if manifest["has_splits"] else split
        only_split = found if manifest["has_splits"] else None
        image_rows, image_ids, problem_of_image = [], [], {}
        for row, image in _lines(path / IMAGES, only_split):
            if "problem" in image:
                problem_of_image[row] = image["problem"]
            else:
                image_rows.append(row)
                image_ids.append(image["id"])
        number_of_row = {row: number for number, row in enumerate(image_rows)}
        text_rows, pair_ids, texts, image_of_text = [], [], [], []
        problems = Problems("skip")
        for row, pair in _lines(path / PAIRS, only_split):
            if pair["image"] in problem_of_image:
                reason = problem_of_image[pair["image"]]
                problems.report(f"pair {pair['id']}", "the image could not be read", reason)
                continue
            text_rows.append(row)
            pair_ids.append(pair["id"])
            texts.append(pair["text"])
            if pair["image"] not in number_of_row:
                raise DataError(f"{path / IMAGES} lacks image {pair['image']}; remove the folder and extract again")
            image_of_text.append(number_of_row[pair["image"]])
        arrays = manifest["arrays"]
        return Pairs(
            name=manifest["name"],
            split=found,
            pair_ids=pair_ids,
            texts=texts,
            image_of_text=np.array(image_of_text, dtype=np.int64),
            image_ids=image_ids,
            image_features=_source(path, arrays, _image_array(path, arrays, features), image_rows),
            text_features=_source(path, arrays, "sentences" if "sentences" in arrays else None, text_rows),
            skipped=problems.skipped(),
        )

    @staticmethod
    def example(folder: Path) -> tuple[Path, dict[str, Any]]:
        image_lines = [{"id": str(k), "split": "train"} for k in range(2)]
        pair_lines = [
            {"id": str(k), "split": "train", "image": k, "text": text} for k, text in enumerate(EXAMPLE_TEXTS)
        ]
        for name, lines in ((IMAGES, image_lines), (PAIRS, pair_lines)):
            (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        np.save(folder / "pooled.npy", np.eye(2, dtype=np.float16))
        manifest = {
            "name": "example",
            "has_splits": True,
            "splits": {"train": {}},
            "arrays": {"pooled": {"shape": [2, 2]}},
        }
        (folder / MANIFEST).write_text(json.dumps(manifest))
        return folder, {}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a finished extraction."""
    if not (folder / MANIFEST).is_file():
        if (folder / JOURNAL).is_file():
            raise DataError(
                f"the extraction in {folder} is not finished; resume it with the same `srem features` command"
            )
        raise DataError(f"{folder} holds no {MANIFEST}; make it with `srem features`")
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict):
        raise DataError(f"{folder / MANIFEST} is damaged; remove the folder and extract again")
    check_version(manifest.get("version", VERSION), newest=VERSION, where=folder / MANIFEST)
    types = {"name": str, "has_splits": bool, "splits": dict, "arrays": dict}
    if not all(isinstance(manifest.get(key), kind) for key, kind in types.items()):
        raise DataError(f"{folder / MANIFEST} is damaged: keys are missing; remove the folder and extract again")
    return manifest


def image_problems(folder: Path) -> dict[str, str]:
    """Why images could not be read, by their ids."""
    with (folder / IMAGES).open(encoding="ascii") as lines, _readable(folder / IMAGES):
        images = (json.loads(line) for line in lines)
        return {image["id"]: image["problem"] for image in images if "problem" in image}


def extracted_images(folder: Path, pairs: Pairs) -> ImageSource | None:
    """The files that the image vectors of `pairs`, read from this folder, were computed from; None if not known.

    They may have been moved since. Training and audits read the vectors alone; search shows the images.
    """
    if not (folder / IMAGE_FILES).is_file():
        return None
    with _readable(folder / IMAGE_FILES), (folder / IMAGE_FILES).open(encoding="ascii") as lines:
        places = [json.loads(line) for line in lines]
        image_ids = [image["id"] for _, image in _lines(folder / IMAGES, None)]
        place_of = dict(zip(image_ids, places, strict=True))
        found = [place_of[image_id] for image_id in pairs.image_ids]
        if all(place is not None and len(place) == 1 for place in found):
            return FileImages([path for (path,) in found])
        if any(place is None or len(place) == 1 for place in found):
            return None
        return TarImages([TarMember(tar, name, *at) for name, (tar, *at) in zip(pairs.image_ids, found, strict=True)])


def _lines(path: Path, split: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Row and entry of each line of this split; of all lines if it is None."""
    with _readable(path), path.open(encoding="ascii") as lines:
        for row, line in enumerate(lines):
            entry = json.loads(line)
            if split is None or entry["split"] == split:
                yield row, entry


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Inside, the lines of a table are read: what goes wrong is a damage of the file."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as cause:
        reason = first_line(cause)
        raise DataError(f"{path} cannot be read ({reason}); remove the folder and extract again") from cause


def _image_array(folder: Path, arrays: dict[str, Any], features: str | None) -> str | None:
    held = [name for name in IMAGE_ARRAYS if name in arrays]
    if features is None:
        return held[0] if held else None
    if features not in held:
        has = f"it has: {', '.join(held)}" if held else "it has none"
        raise DataError(f"{folder} holds no image features called '{features}'; {has}")
    return features


def _source(folder: Path, arrays: dict[str, Any], name: str | None, rows: list[int]) -> MappedFeatures | None:
    if name is None:
        return None
    path = folder / f"{name}.npy"
    mapped = MappedFeatures(path, row_of_item=np.array(rows, dtype=np.int64))
    expected = arrays[name]["shape"][0]
    if mapped.num_file_rows != expected:
        raise DataError(
            f"{path} has {mapped.num_file_rows} rows instead of {expected}; remove the folder and extract again"
        )
    return mapped
