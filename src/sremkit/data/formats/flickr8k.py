"""Flickr8k as a folder of captions, features and small pictures."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from sremkit.data.features import ArrayFeatures, MappedFeatures
from sremkit.data.formats import FORMATS
from sremkit.data.images import TarImages
from sremkit.data.pair_list import PairList
from sremkit.data.pairs import FeatureSource, OnError, Pairs, Problems
from sremkit.data.splits import choose_split
from sremkit.data.tar_index import TarMember, tar_members
from sremkit.data.text_files import read_lines
from sremkit.errors import DataError

HEADER = ["image", "split", "cap_id", "caption"]


@FORMATS.register("flickr8k")
class Flickr8k:
    """Folder of pairs.tsv, images.txt, pooled.npy, regions36.npz, sentences.npy and images-*.tar."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        return (path / "pairs.tsv").is_file() and (path / "images.txt").is_file()

    @staticmethod
    def read(
        path: Path,
        *,
        split: str,
        on_error: OnError = "raise",
        features: Literal["pooled", "regions36"] | None = "pooled",
    ) -> Pairs:
        """Read one split; the pair id is `<image>#<number of the caption>`.

        Sentence vectors and pictures come along where their files are there.

        Args:
            features: which image features: one vector an image, 36 regions, or none.
        """
        problems = Problems(on_error)
        table = path / "pairs.tsv"
        captions = _captions(table, problems)
        found = choose_split(split, (caption.split for caption in captions if caption), path)
        names, row_of_image = _image_rows(path / "images.txt")
        member_of_stem = _pictures_by_stem(path, problems)
        missing = {name for name in names if _stem(name) not in member_of_stem} if member_of_stem else set()

        pairs = PairList(problems)
        for row, caption in enumerate(captions):
            if caption is None or caption.split != found:
                continue
            image, where = caption.image, f"{table}, line {row + 2}"
            if image not in row_of_image:
                problems.found(where, "its image is not in images.txt", f"add {image} or remove the row")
            elif image in missing:
                problems.found(where, "its picture is in no archive", f"add {image} to one of images-*.tar")
            else:
                pair_id = f"{image}#{caption.number}"
                pairs.add(where, pair_id=pair_id, text=caption.text, image_id=image, row=row)

        image_rows = np.array([row_of_image[image] for image in pairs.image_ids], dtype=np.int64)
        pictures = [member_of_stem[_stem(image)] for image in pairs.image_ids] if member_of_stem else None
        return pairs.pairs(
            name=path.name,
            split=found,
            images=None if pictures is None else TarImages(pictures),
            image_features=_image_features(path, features, image_rows, len(names)),
            text_features=_sentences(path / "sentences.npy", np.array(pairs.rows), len(captions)),
        )


class _Caption(NamedTuple):
    image: str
    split: str
    number: str
    text: str


def _captions(path: Path, problems: Problems) -> list[_Caption | None]:
    """The rows of the table in order, None where one is bad and already reported."""
    lines = read_lines(path, problems)
    if not lines or lines[0] is None or lines[0].split("\t") != HEADER:
        raise DataError(f"{path}, line 1: expected the columns {', '.join(HEADER)}, separated by tabs")
    captions: list[_Caption | None] = []
    for number, line in enumerate(lines[1:], start=2):
        fields = [] if line is None else line.split("\t")
        good = len(fields) == len(HEADER)
        if line is not None and not good:
            problems.found(
                f"{path}, line {number}", f"{len(fields)} fields where the header has 4", "correct the row"
            )
        captions.append(_Caption(*fields) if good else None)
    return captions


def _image_rows(path: Path) -> tuple[list[str], dict[str, int]]:
    """The image names in order, and the feature row of each."""
    names = [str(line).strip() for line in read_lines(path, Problems())]
    row_of_image: dict[str, int] = {}
    for row, name in enumerate(names):
        if row_of_image.setdefault(name, row) != row:
            raise DataError(
                f"{path}, line {row + 1}: '{name}' stands on line {row_of_image[name] + 1} already; "
                "each image has one feature row, so copy the file again"
            )
    return names, row_of_image


def _pictures_by_stem(path: Path, problems: Problems) -> dict[str, TarMember]:
    archives = sorted(path.glob("images-*.tar"))
    return {_stem(member.name): member for archive in archives for member in tar_members(archive, problems)}


def _stem(name: str) -> str:
    # The captions speak of <id>.jpg, the archives hold <id>.avif.
    return os.path.splitext(name)[0]


def _image_features(
    path: Path, features: str | None, image_rows: np.ndarray, num_rows: int
) -> FeatureSource | None:
    if features is None:
        return None
    if features == "pooled":
        mapped = MappedFeatures(path / "pooled.npy", row_of_item=image_rows)
        _check_rows(mapped.path, mapped.num_file_rows, path / "images.txt", num_rows)
        return mapped
    if features != "regions36":
        raise DataError(f"features must be 'pooled', 'regions36' or None, got '{features}'")
    file = path / "regions36.npz"
    try:
        with np.load(file, allow_pickle=False) as content:
            regions, scale = content["features"], content["scale"]  # (all images, r, d) int8, (d,)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as cause:
        raise DataError(
            f"{file} cannot be read ({cause}); copy it again, or pass features='pooled'"
        ) from cause
    _check_rows(file, len(regions), path / "images.txt", num_rows)
    return ArrayFeatures(regions[image_rows], scale=scale, name=str(file))


def _sentences(path: Path, rows: np.ndarray, num_rows: int) -> FeatureSource | None:
    if not path.exists():
        return None
    mapped = MappedFeatures(path, row_of_item=rows)
    _check_rows(path, mapped.num_file_rows, path.with_name("pairs.tsv"), num_rows)
    return mapped


def _check_rows(file: Path, found: int, lines_of: Path, expected: int) -> None:
    if found != expected:
        raise DataError(
            f"{file} has {found} rows, but {lines_of} has {expected}; copy both again from one source"
        )
