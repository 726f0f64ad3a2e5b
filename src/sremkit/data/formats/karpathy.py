"""The split files of Karpathy and Fei-Fei, `dataset_*.json`: images with their sentences."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sremkit.data.formats import ELSEWHERE, FORMATS
from sremkit.data.images import FileImages
from sremkit.data.pair_list import PairList
from sremkit.data.pairs import OnError, Pairs, Problems
from sremkit.data.splits import choose_split
from sremkit.data.text_files import head, read_json
from sremkit.errors import DataError


@FORMATS.register("karpathy")
class Karpathy:
    """dataset_*.json with images[].sentences[]; pictures beside it or under image_root, if any."""

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
            image_root: folder of the pictures; by default they are looked for beside the file.
            restval_is_train: COCO's 'restval' images count as training data, as everywhere in the literature.
        """
        problems = Problems(on_error)
        images = _images(path)
        split_of_image = [str(image.get("split", "")) for image in images]
        if restval_is_train:
            split_of_image = ["train" if name == "restval" else name for name in split_of_image]
        found = choose_split(split, split_of_image, path)
        wanted = [k for k, of_image in enumerate(split_of_image) if of_image == found]
        root = Path(image_root) if image_root is not None else _root_beside(path, images[wanted[0]])
        pairs = PairList(problems)
        picture_of_image: dict[str, str] = {}
        for k in wanted:
            image, where = images[k], f"{path}, images[{k}]"
            image_id = _image_id(image, k)
            if image_id in picture_of_image:
                problems.found(
                    where, "the image has appeared before", f"keep one of the entries '{image_id}'"
                )
                continue
            picture_of_image[image_id] = picture = os.path.join(root or "", _file_name(image))
            if root is not None and not os.path.isfile(picture):
                problems.found(where, "the picture is missing", f"put it at {picture}, or {ELSEWHERE}")
                continue
            _add_sentences(pairs, image, image_id, where)
        pictures = None if root is None else FileImages([picture_of_image[name] for name in pairs.image_ids])
        return pairs.pairs(name=path.stem, split=found, images=pictures)


def _images(path: Path) -> list[dict[str, Any]]:
    content = read_json(path)
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise DataError(
            f"{path} has no list 'images'; expected a Karpathy split file such as dataset_flickr30k.json"
        )
    return images


def _image_id(image: dict[str, Any], number: int) -> str:
    known = (image[key] for key in ("filename", "cocoid", "imgid") if key in image)
    return str(next(known, number))


def _file_name(image: dict[str, Any]) -> str:
    return os.path.join(str(image.get("filepath", "")), str(image.get("filename", "")))


def _root_beside(path: Path, image: dict[str, Any]) -> Path | None:
    """The folder beside the file in which the first picture lies; None if the pictures are not there."""
    roots = (path.parent, path.parent / "images")
    return next((root for root in roots if (root / _file_name(image)).is_file()), None)


def _add_sentences(pairs: PairList, image: dict[str, Any], image_id: str, where: str) -> None:
    sentences = image.get("sentences") or []
    if not sentences:
        pairs.problems.found(where, "no sentences", "add one or remove the image")
    for k, sentence in enumerate(sentences):
        entry = sentence if isinstance(sentence, dict) else {"raw": sentence}
        text = entry.get("raw") or " ".join(map(str, entry.get("tokens", [])))
        pair_id = str(entry.get("sentid", f"{image_id}#{k}"))
        pairs.add(f"{where}.sentences[{k}]", pair_id=pair_id, text=text, image_id=image_id)
