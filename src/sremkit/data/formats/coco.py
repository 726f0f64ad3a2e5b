"""COCO's caption annotations: `captions_train2017.json` and files made like it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sremkit.data.formats import ELSEWHERE, FORMATS
from sremkit.data.images import FileImages
from sremkit.data.pair_list import PairList
from sremkit.data.pairs import OnError, Pairs, Problems
from sremkit.data.splits import choose_split, split_in_name
from sremkit.data.text_files import head, read_json
from sremkit.errors import DataError


@FORMATS.register("coco")
class Coco:
    """Captions JSON with images[] and annotations[], or a folder of captions_{split}*.json."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        if path.is_dir():
            return bool(_files_by_split(path))
        beginning = head(path) if path.suffix == ".json" else b""
        return b'"sentences"' not in beginning and any(
            key in beginning for key in (b'"annotations"', b'"file_name"', b'"image_id"')
        )

    @staticmethod
    def read(
        path: Path, *, split: str, on_error: OnError = "raise", image_root: str | Path | None = None
    ) -> Pairs:
        """Read one file; the pair id is the annotation's id, the image id COCO's own.

        A file whose name speaks of a split is that split; any other is taken whole, as the split asked for.

        Args:
            image_root: folder of the pictures; by default they are looked for around the file.
        """
        problems = Problems(on_error)
        path, found = _file_of_split(path, split)
        content = read_json(path)
        names = _file_names(path, content)
        root = Path(image_root) if image_root is not None else _root_around(path, names)
        pairs = PairList(problems)
        missing: dict[str, bool] = {}
        for k, annotation in enumerate(content["annotations"]):
            where = f"{path}, annotations[{k}]"
            image_id = str(annotation.get("image_id"))
            if image_id not in names:
                problems.found(
                    where, "its image is not in 'images'", f"add image {image_id} or remove the caption"
                )
                continue
            if root is not None:
                picture = os.path.join(root, names[image_id])
                if image_id not in missing:
                    missing[image_id] = not os.path.isfile(picture)
                if missing[image_id]:
                    problems.found(where, "the picture is missing", f"put it at {picture}, or {ELSEWHERE}")
                    continue
            pair_id = str(annotation.get("id", k))
            pairs.add(where, pair_id=pair_id, text=annotation.get("caption"), image_id=image_id)
        pictures = (
            None if root is None else FileImages([os.path.join(root, names[k]) for k in pairs.image_ids])
        )
        return pairs.pairs(name=path.stem, split=found, images=pictures)


def _files_by_split(folder: Path) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("captions_*.json")):
        if split := split_in_name(file.stem):
            files.setdefault(split, []).append(file)
    return files


def _file_of_split(path: Path, split: str) -> tuple[Path, str]:
    if path.is_dir():
        files = _files_by_split(path)
        found = choose_split(split, files, path)
        if len(files[found]) > 1:
            names = ", ".join(file.name for file in files[found])
            raise DataError(
                f"{path} has several files for the split '{found}' ({names}); give one of them as the path"
            )
        return files[found][0], found
    named = split_in_name(path.stem)
    return path, split if named is None else choose_split(split, [named], path)


def _file_names(path: Path, content: Any) -> dict[str, str]:
    """File name of each image id."""
    for part in ("images", "annotations"):
        found = content.get(part) if isinstance(content, dict) else None
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise DataError(
                f"{path} has no list '{part}'; expected COCO captions with 'images' and 'annotations'"
            )
    annotations = content["annotations"]
    if annotations and not any("caption" in annotation for annotation in annotations):
        raise DataError(
            f"{path} has no captions in its annotations; give a captions_*.json, not instances or keypoints"
        )
    return {str(image.get("id")): str(image.get("file_name", "")) for image in content["images"]}


def _root_around(path: Path, names: dict[str, str]) -> Path | None:
    """Where the first picture lies: beside the file, or in COCO's `train2017/` beside `annotations/`."""
    first = next((name for name in names.values() if name), None)
    if first is None:
        return None
    split_folder = path.stem.removeprefix("captions_")  # "train2017"
    for base in (path.parent, path.parent.parent):
        for root in (base, base / "images", base / split_folder, base / "images" / split_folder):
            if (root / first).is_file():
                return root
    return None
