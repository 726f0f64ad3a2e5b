"""Split files of Karpathy and Fei-Fei, `dataset_*.json`: images with their sentences."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sremkit.data.format_utils import choose_split, head
from sremkit.data.formats import EXAMPLE_TEXTS, FORMATS
from sremkit.data.images import ImageFiles
from sremkit.data.pairs import OnError, PairBuilder, Pairs, Problems
from sremkit.errors import DataError
from sremkit.io import read_json


@FORMATS.register("karpathy")
class Karpathy:
    """dataset_*.json with images[].sentences[]; images next to it or in image_root, if any."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        return path.suffix == ".json" and b'"sentences"' in head(path)

    @staticmethod
    def read(
        path: Path,
        *,
        split: str,
        on_error: OnError = "raise",
        image_root: str | Path | None = None,
        restval_is_train: bool = True,
    ) -> Pairs:
        """Read one split; the pair id is the file's `sentid`.

        Args:
            image_root: folder of the images; by default they are searched next to the file.
            restval_is_train: count COCO's 'restval' images as training data, as is common.
        """
        problems = Problems(on_error)
        images = _images(path)
        split_of_image = [str(image.get("split", "")) for image in images]
        if restval_is_train:
            split_of_image = ["train" if name == "restval" else name for name in split_of_image]
        found = choose_split(split, split_of_image, path)
        wanted = [k for k, of_image in enumerate(split_of_image) if of_image == found]
        files = ImageFiles(_find_root(path, images[wanted[0]]) if image_root is None else image_root)
        pairs = PairBuilder(problems)
        file_of_image: dict[str, str] = {}
        for k in wanted:
            image, where = images[k], f"{path}, images[{k}]"
            image_id = _image_id(image, k)
            if image_id in file_of_image:
                problems.report(where, "the image has appeared before", f"keep one of the entries '{image_id}'")
                continue
            file_of_image[image_id] = _file_name(image)
            if problem := files.find_problem(file_of_image[image_id]):
                problems.report(where, *problem)
                continue
            _add_sentences(pairs, image, image_id, where)
        sources = files.source([file_of_image[image_id] for image_id in pairs.image_ids])
        return pairs.build(name=path.stem, split=found, images=sources)

    @staticmethod
    def example(folder: Path) -> tuple[Path, dict[str, Any]]:
        images = [
            {"filename": f"{k}.png", "split": "train", "sentences": [{"raw": text, "sentid": k}]}
            for k, text in enumerate(EXAMPLE_TEXTS)
        ]
        path = folder / "dataset_example.json"
        path.write_text(json.dumps({"images": images}))
        return path, {}


def _images(path: Path) -> list[dict[str, Any]]:
    content = read_json(path)
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise DataError(f"{path} has no list 'images'; expected a Karpathy split file such as dataset_flickr30k.json")
    return images


def _image_id(image: dict[str, Any], number: int) -> str:
    known = (image[key] for key in ("filename", "cocoid", "imgid") if key in image)
    return str(next(known, number))


def _file_name(image: dict[str, Any]) -> str:
    return os.path.join(str(image.get("filepath", "")), str(image.get("filename", "")))


def _find_root(path: Path, image: dict[str, Any]) -> Path | None:
    """The folder of the first image, next to the file; None if the image is not there."""
    roots = (path.parent, path.parent / "images")
    return next((root for root in roots if (root / _file_name(image)).is_file()), None)


def _add_sentences(pairs: PairBuilder, image: dict[str, Any], image_id: str, where: str) -> None:
    sentences = image.get("sentences") or []
    if not sentences:
        pairs.problems.report(where, "no sentences", "add one or remove the image")
    for k, sentence in enumerate(sentences):
        entry = sentence if isinstance(sentence, dict) else {"raw": sentence}
        text = entry.get("raw") or " ".join(map(str, entry.get("tokens", [])))
        pair_id = str(entry.get("sentid", f"{image_id}#{k}"))
        pairs.add(f"{where}.sentences[{k}]", pair_id=pair_id, text=text, image_id=image_id)
