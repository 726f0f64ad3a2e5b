"""Pictures in folders, each with a text file of the same name that holds its captions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from sremkit.data.formats import FORMATS
from sremkit.data.images import PICTURE_SUFFIXES, FileImages
from sremkit.data.pair_list import PairList
from sremkit.data.pairs import OnError, Pairs, Problems
from sremkit.data.splits import split_folder
from sremkit.data.text_files import read_lines
from sremkit.errors import DataError

LOOKED_AT = 1000  # files that recognising a folder may cost


@FORMATS.register("folder")
class Folder:
    """Folder of a.jpg with a.txt, one caption a line; subfolders train, val and test are splits."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        if not path.is_dir() or any(path.glob("*.tar")):
            return False
        return any(picture.with_suffix(".txt").is_file() for picture in _some_pictures(path))

    @staticmethod
    def read(path: Path, *, split: str, on_error: OnError = "raise") -> Pairs:
        """Read the folder named like the split, or everything where no folder is named like one.

        The image id is the path of the picture below `path`; the pair id adds the number of the caption.
        """
        if not path.is_dir():
            raise DataError(f"{path} is not a folder; give the one that holds the pictures and captions")
        problems = Problems(on_error)
        folder, found = split_folder(path, split)
        files = sorted(_files(folder))
        pictures = [file for file in files if _is_picture(file)]
        _report_lonely_texts(files, pictures, problems)
        pairs = PairList(problems)
        for picture in pictures:
            image_id = picture.relative_to(path).as_posix()
            captions = picture.with_suffix(".txt")
            if not captions.is_file():
                problems.found(str(picture), "no captions", f"write them to {captions.name} beside it")
                continue
            lines = read_lines(captions, problems)
            texts = [(k, text) for k, text in enumerate(lines, start=1) if text is not None and text.strip()]
            if not any(line is None for line in lines) and not texts:
                problems.found(str(captions), "the caption is empty", "write one or remove picture and text")
            for number, (line, text) in enumerate(texts):
                pairs.add(
                    f"{captions}, line {line}", pair_id=f"{image_id}#{number}", text=text, image_id=image_id
                )
        sources = FileImages([path / image_id for image_id in pairs.image_ids])
        return pairs.pairs(name=path.name, split=found, images=sources)


def first_picture(folder: Path) -> Path | None:
    """One of the pictures in a folder, None if none is found soon."""
    return next(_some_pictures(folder), None)


def _some_pictures(folder: Path) -> Iterator[Path]:
    return (file for file in islice(_files(folder), LOOKED_AT) if _is_picture(file))


def _is_picture(file: Path) -> bool:
    return file.suffix.lower() in PICTURE_SUFFIXES


def _files(folder: Path) -> Iterator[Path]:
    for parent, subfolders, names in os.walk(folder):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):  # such as the shadow files that macOS leaves
                yield Path(parent, name)


def _report_lonely_texts(files: list[Path], pictures: list[Path], problems: Problems) -> None:
    described = {picture.with_suffix(".txt") for picture in pictures}
    for file in files:
        if file.suffix.lower() == ".txt" and file not in described:
            problems.found(
                str(file), "no picture of the same name", "add it or move the text out of the folder"
            )
