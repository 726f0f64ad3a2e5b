"""Caption annotations of COCO, such as `captions_train2017.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sremkit.data.format_utils import choose_split, head, split_in_name
from sremkit.data.formats import EXAMPLE_TEXTS, FORMATS
from sremkit.data.images import ImageFiles
from sremkit.data.pairs import OnError, PairBuilder, Pairs, Problems
from sremkit.errors import DataError
from sremkit.io import read_json


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
    def read(path: Path, *, split: str, on_error: OnError = "raise", image_root: str | Path | None = None) -> Pairs:
        """Read one file; the pair id is the annotation's id, the image id COCO's own.

        A file whose name contains a split is that split; any other file is read whole for every split.

        Args:
            image_root: folder of the images; by default they are searched near the file.
        """
        problems = Problems(on_error)
        path, found = _file_of_split(path, split)
        content = read_json(path)
        names = _file_names(path, content)
        files = ImageFiles(_find_root(path, names) if image_root is None else image_root)
        pairs = PairBuilder(problems)
        for k, annotation in enumerate(content["annotations"]):
            where = f"{path}, annotations[{k}]"
            image_id = str(annotation.get("image_id"))
            if image_id not in names:
                problems.report(where, "its image is not in 'images'", f"add image {image_id} or remove the caption")
                continue
            if problem := files.find_problem(names[image_id]):
                problems.report(where, *problem)
                continue
            pair_id = str(annotation.get("id", k))
            pairs.add(where, pair_id=pair_id, text=annotation.get("caption"), image_id=image_id)
        images = files.source([names[image_id] for image_id in pairs.image_ids])
        return pairs.build(name=path.stem, split=found, images=images)

    @staticmethod
    def example(folder: Path) -> tuple[Path, dict[str, Any]]:
        images = [{"id": k, "file_name": f"{k}.png"} for k in range(2)]
        captions = [{"id": 10 + k, "image_id": k, "caption": text} for k, text in enumerate(EXAMPLE_TEXTS)]
        path = folder / "captions_train2017.json"
        path.write_text(json.dumps({"images": images, "annotations": captions}))
        return path, {}


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
            raise DataError(f"{path} has several files for the split '{found}' ({names}); give one of them as the path")
        return files[found][0], found
    named = split_in_name(path.stem)
    return path, split if named is None else choose_split(split, [named], path)


def _file_names(path: Path, content: Any) -> dict[str, str]:
    """File name of each image id."""
    for part in ("images", "annotations"):
        found = content.get(part) if isinstance(content, dict) else None
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise DataError(f"{path} has no list '{part}'; expected COCO captions with 'images' and 'annotations'")
    annotations = content["annotations"]
    if annotations and not any("caption" in annotation for annotation in annotations):
        raise DataError(
            f"{path} has no captions in its annotations; give a captions_*.json, not instances or keypoints"
        )
    return {str(image.get("id")): str(image.get("file_name", "")) for image in content["images"]}


def _find_root(path: Path, names: dict[str, str]) -> Path | None:
    """The folder of the first image: that of the file, or COCO's `train2017/` next to `annotations/`."""
    first = next((name for name in names.values() if name), None)
    if first is None:
        return None
    split_folder = path.stem.removeprefix("captions_")  # "train2017"
    folders = (".", "images", split_folder, f"images/{split_folder}")
    roots = (base / folder for base in (path.parent, path.parent.parent) for folder in folders)
    return next((root for root in roots if (root / first).is_file()), None)
