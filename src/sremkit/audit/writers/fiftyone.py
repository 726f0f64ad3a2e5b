"""A dataset that FiftyOne imports: the paths of the images, with labels, confidence and captions."""

from __future__ import annotations

from pathlib import Path

from sremkit.audit.selection import VERDICT_COLUMN, Selection
from sremkit.errors import UserError
from sremkit.io import write_json


def write_fiftyone(rows: Selection, out: Path) -> None:
    """A classification dataset that FiftyOne imports: labels.json, and data.json with the path of each image.

    The classes are "match" and "mismatch", with the probability as confidence; the captions are attributes.
    """
    root = _image_root(rows)
    columns = [name for name in ("id", "image", "text", "match_probability", "better_text") if name in rows.table]
    samples = []
    paths: dict[str, str] = {}
    for chunk in rows.chunks([*columns, VERDICT_COLUMN]):
        for pair in chunk.to_pylist():
            if pair["id"] is None or pair["image"] is None or pair["match_probability"] is None:
                rows.left_out += 1
                continue
            paths[pair["id"]] = str(root / pair["image"])
            samples.append((pair["id"], pair, pair[VERDICT_COLUMN] == "mismatch"))
    labels = {
        name: {
            "label": "mismatch" if wrong else "match",
            "confidence": 1 - pair["match_probability"] if wrong else pair["match_probability"],
            "attributes": {
                "caption": pair["text"],
                "better_caption": pair.get("better_text"),
                "match_probability": pair["match_probability"],
            },
        }
        for name, pair, wrong in samples
    }
    write_json(out / "data.json", paths)
    # Without "classes": with them, FiftyOne reads labels as numbers of classes.
    write_json(out / "labels.json", {"labels": labels})


def _image_root(rows: Selection) -> Path:
    """The folder that image paths start from."""
    source = rows.table.facts["source"]
    if rows.format not in ("table", "folder"):
        raise UserError("FiftyOne reads image files, and these pairs are not a table or a folder of files; choose csv")
    path, root = Path(source["path"]), source.get("options", {}).get("image_root")
    return Path(root).absolute() if root else path if path.is_dir() else path.parent
