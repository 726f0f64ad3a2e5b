"""Flickr8k as a folder of captions, features and small images."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sremkit.data.features import ArrayFeatures, MappedFeatures
from sremkit.data.format_utils import choose_split, read_lines
from sremkit.data.formats import EXAMPLE_TEXTS, FORMATS
from sremkit.data.images import TarImages, TarMember, tar_members
from sremkit.data.pairs import FeatureSource, OnError, PairBuilder, Pairs, Problems
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

        Sentence vectors and images are optional.

        Args:
            features: image features: one vector per image, 36 regions per image, or none.
        """
        problems = Problems(on_error)
        table = path / "pairs.tsv"
        captions = _captions(table, problems)
        found = choose_split(split, (caption.split for caption in captions if caption), path)
        names, row_of_image = _image_rows(path / "images.txt")
        member_of_stem = _images_by_stem(path, problems)
        missing = {name for name in names if _stem(name) not in member_of_stem} if member_of_stem else set()

        pairs = PairBuilder(problems)
        for row, caption in enumerate(captions):
            if caption is None or caption.split != found:
                continue
            image, where = caption.image, f"{table}, line {row + 2}"
            if image not in row_of_image:
                problems.report(where, "its image is not in images.txt", f"add {image} or remove the row")
            elif image in missing:
                problems.report(where, "its image is in no archive", f"add {image} to one of images-*.tar")
            else:
                pair_id = f"{image}#{caption.number}"
                pairs.add(where, pair_id=pair_id, text=caption.text, image_id=image, row=row)

        image_rows = np.array([row_of_image[image] for image in pairs.image_ids], dtype=np.int64)
        images = [member_of_stem[_stem(image)] for image in pairs.image_ids] if member_of_stem else None
        sentences = path / "sentences.npy"
        return pairs.build(
            name=path.name,
            split=found,
            images=None if images is None else TarImages(images),
            image_features=_image_features(path, features, image_rows, len(names)),
            text_features=_mapped(sentences, np.array(pairs.rows), table, len(captions))
            if sentences.exists()
            else None,
        )

    @staticmethod
    def example(folder: Path) -> tuple[Path, dict[str, Any]]:
        rows = [HEADER, *([f"{k}.jpg", "train", "0", text] for k, text in enumerate(EXAMPLE_TEXTS))]
        (folder / "pairs.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
        (folder / "images.txt").write_text("0.jpg\n1.jpg\n")
        np.save(folder / "pooled.npy", np.eye(2, dtype=np.float16))
        return folder, {}


class _Caption(NamedTuple):
    image: str
    split: str
    number: str
    text: str


def _captions(path: Path, problems: Problems) -> list[_Caption | None]:
    """The rows of the table in order, None for a bad row."""
    lines = read_lines(path, problems)
    if not lines or lines[0] is None or lines[0].split("\t") != HEADER:
        raise DataError(f"{path}, line 1: expected the columns {', '.join(HEADER)}, separated by tabs")
    captions: list[_Caption | None] = []
    for number, line in enumerate(lines[1:], start=2):
        fields = [] if line is None else line.split("\t")
        good = len(fields) == len(HEADER)
        if line is not None and not good:
            problems.report(f"{path}, line {number}", f"{len(fields)} fields where the header has 4", "correct the row")
        captions.append(_Caption(*fields) if good else None)
    return captions


def _image_rows(path: Path) -> tuple[list[str], dict[str, int]]:
    """Image names in order, and the feature row of each."""
    names = [str(line).strip() for line in read_lines(path, Problems())]
    row_of_image: dict[str, int] = {}
    for row, name in enumerate(names):
        if row_of_image.setdefault(name, row) != row:
            raise DataError(
                f"{path}, line {row + 1}: '{name}' is already on line {row_of_image[name] + 1}; "
                "each image has one feature row, so copy the file again"
            )
    return names, row_of_image


def _images_by_stem(path: Path, problems: Problems) -> dict[str, TarMember]:
    archives = sorted(path.glob("images-*.tar"))
    return {_stem(member.name): member for archive in archives for member in tar_members(archive, problems)}


def _stem(name: str) -> str:
    # pairs.tsv names <id>.jpg, the archives hold <id>.avif.
    return os.path.splitext(name)[0]


def _image_features(path: Path, features: str | None, image_rows: np.ndarray, num_rows: int) -> FeatureSource | None:
    if features is None:
        return None
    if features == "pooled":
        return _mapped(path / "pooled.npy", image_rows, path / "images.txt", num_rows)
    if features != "regions36":
        raise DataError(f"features must be 'pooled', 'regions36' or None, got '{features}'")
    file = path / "regions36.npz"
    try:
        with np.load(file, allow_pickle=False) as content:
            regions, scale = content["features"], content["scale"]  # (all images, r, d) int8, (d,)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as cause:
        raise DataError(f"{file} cannot be read ({cause}); copy it again, or pass features='pooled'") from cause
    _check_rows(file, len(regions), path / "images.txt", num_rows)
    return ArrayFeatures(regions[image_rows], scale=scale, name=str(file))


def _mapped(file: Path, rows: np.ndarray, lines_of: Path, num_rows: int) -> MappedFeatures:
    mapped = MappedFeatures(file, row_of_item=rows)
    _check_rows(file, mapped.num_file_rows, lines_of, num_rows)
    return mapped


def _check_rows(file: Path, found: int, lines_of: Path, expected: int) -> None:
    if found != expected:
        raise DataError(f"{file} has {found} rows, but {lines_of} has {expected}; copy both again from one source")
