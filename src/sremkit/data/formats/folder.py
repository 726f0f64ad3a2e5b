"""Image folders: a text file of the same name holds the captions of each image."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from sremkit.data.format_utils import read_lines, split_folder
from sremkit.data.formats import EXAMPLE_TEXTS, FORMATS
from sremkit.data.images import IMAGE_SUFFIXES, PNG_PIXEL, FileImages
from sremkit.data.pairs import OnError, PairBuilder, Pairs, Problems
from sremkit.errors import DataError

MAX_FILES = 1000  # that are listed to recognise a folder


@FORMATS.register("folder")
class Folder:
    """Folder of a.jpg with a.txt, one caption per line; subfolders train, val and test are splits."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        if not path.is_dir() or any(path.glob("*.tar")):
            return False
        return any(image.with_suffix(".txt").is_file() for image in some_images(path))

    @staticmethod
    def read(path: Path, *, split: str, on_error: OnError = "raise") -> Pairs:
        """Read the subfolder named like the split, or everything if no subfolder is.

        The image id is the path of the image below `path`; the pair id adds the number of the caption.
        """
        if not path.is_dir():
            raise DataError(f"{path} is not a folder; give the one that holds the images and captions")
        problems = Problems(on_error)
        folder, found = split_folder(path, split)
        files = sorted(_files(folder))
        images = [file for file in files if _is_image(file)]
        described = {image.with_suffix(".txt") for image in images}
        for file in files:
            if file.suffix.lower() == ".txt" and file not in described:
                problems.report(str(file), "no image of the same name", "add it or move the text out of the folder")
        pairs = PairBuilder(problems)
        for image in images:
            image_id = image.relative_to(path).as_posix()
            captions = image.with_suffix(".txt")
            if not captions.is_file():
                problems.report(str(image), "no captions", f"write them to {captions.name} next to it")
                continue
            lines = read_lines(captions, problems)
            texts = [(k, text) for k, text in enumerate(lines, start=1) if text is not None and text.strip()]
            if not any(line is None for line in lines) and not texts:
                problems.report(str(captions), "the caption is empty", "write one or remove image and text")
            for number, (line, text) in enumerate(texts):
                pairs.add(f"{captions}, line {line}", pair_id=f"{image_id}#{number}", text=text, image_id=image_id)
        sources = FileImages([path / image_id for image_id in pairs.image_ids])
        return pairs.build(name=path.name, split=found, images=sources)

    @staticmethod
    def example(folder: Path) -> tuple[Path, dict[str, Any]]:
        for k, text in enumerate(EXAMPLE_TEXTS):
            (folder / f"{k}.png").write_bytes(PNG_PIXEL)
            (folder / f"{k}.txt").write_text(text)
        return folder, {}


def some_images(folder: Path) -> Iterator[Path]:
    """The images among the first files of a folder."""
    return (file for file in islice(_files(folder), MAX_FILES) if _is_image(file))


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in IMAGE_SUFFIXES


def _files(folder: Path) -> Iterator[Path]:
    for parent, subfolders, names in os.walk(folder):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):  # such as the hidden files of macOS
                yield Path(parent, name)
