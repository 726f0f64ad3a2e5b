"""Small collections on disk, one writer per layout, for the tests of formats."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw


def make_image(color: str = "red", *, size: tuple[int, int] = (12, 8), mode: str = "RGB") -> Image.Image:
    """A black square on a coloured ground."""
    image = Image.new("RGB", size, color)
    ImageDraw.Draw(image).rectangle((1, 1, 3, 3), fill="black")
    return image.convert(mode)


def image_bytes(color: str = "red", *, format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    make_image(color).save(buffer, format=format, **options)
    return buffer.getvalue()


def write_image(path: Path, color: str = "red") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    make_image(color).save(path)
    return path


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def write_shard(path: Path, samples: Mapping[str, str], *, suffix: str = "png") -> Path:
    """A WebDataset shard: for each key an image and its caption."""
    members: list[tuple[str, bytes]] = []
    for key, caption in samples.items():
        members += [(f"{key}.{suffix}", image_bytes()), (f"{key}.txt", caption.encode())]
    return write_tar(path, members)


def image_rows(num_rows: int, *, regions: int = 3, width: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((num_rows, regions, width)).astype(np.float32)


def write_precomp(folder: Path, split: str, rows: np.ndarray, captions: Sequence[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{split}_ims.npy", rows)
    (folder / f"{split}_caps.txt").write_text("".join(f"{caption}\n" for caption in captions), encoding="utf-8")
    return folder


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def karpathy_content(captions: Mapping[str, Sequence[str]], *, split: str = "train") -> dict[str, Any]:
    """The content of a Karpathy file in which every image is in one split."""
    images, sentid = [], 0
    for imgid, (filename, sentences) in enumerate(captions.items()):
        entries = []
        for raw in sentences:
            entries.append({"raw": raw, "tokens": raw.split(), "imgid": imgid, "sentid": sentid})
            sentid += 1
        images.append({"filename": filename, "imgid": imgid, "split": split, "sentences": entries})
    return {"images": images, "dataset": "small"}


def coco_content(captions: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """COCO caption annotations; image k is called `100 + k`."""
    images = [{"id": 100 + k, "file_name": name} for k, name in enumerate(captions)]
    annotations = [
        {"id": 10 * k + j, "image_id": 100 + k, "caption": text}
        for k, texts in enumerate(captions.values())
        for j, text in enumerate(texts)
    ]
    return {"info": {}, "images": images, "annotations": annotations}


def write_flickr8k(folder: Path, splits: Mapping[str, int], *, captions: int = 2) -> Path:
    """The folder of Flickr8k with `splits[name]` images in each split; feature row k is full of k."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [(f"{k:03d}_x.jpg", split) for split, count in splits.items() for k in range(count)]
    names = [(f"{split}{name}", split) for name, split in names]
    rows = ["image\tsplit\tcap_id\tcaption"]
    rows += [f'{name}\t{split}\t{j}\tThe "caption {j} of {name}' for name, split in names for j in range(captions)]
    (folder / "pairs.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "images.txt").write_text("".join(f"{name}\n" for name, _ in names), encoding="utf-8")
    n = len(names)
    np.save(folder / "pooled.npy", np.arange(n, dtype=np.float16)[:, None].repeat(5, axis=1))
    np.save(folder / "sentences.npy", np.arange(n * captions, dtype=np.float16)[:, None].repeat(3, axis=1))
    regions = np.arange(n, dtype=np.int8)[:, None, None].repeat(4, axis=1).repeat(2, axis=2)  # (n, 4, 2)
    np.savez(folder / "regions36.npz", features=regions, scale=np.array([0.5, 2.0], dtype=np.float32))
    half = (n + 1) // 2
    stems = [name.removesuffix(".jpg") for name, _ in names]
    for number, part in enumerate((stems[:half], stems[half:])):
        write_tar(
            folder / f"images-{number:03d}.tar",
            [(f"{stem}.avif", image_bytes(format="AVIF")) for stem in part],
        )
    return folder


def write_features(
    folder: Path,
    splits: Mapping[str, int],
    *,
    has_splits: bool = True,
    problems: Mapping[int, str] | None = None,
) -> Path:
    """A folder of extracted features with `splits[name]` images of two texts each; array row k is full of k."""
    folder.mkdir(parents=True, exist_ok=True)
    split_of_image = [split for split, count in splits.items() for _ in range(count)]
    n, m = len(split_of_image), 2 * len(split_of_image)
    images: list[dict[str, Any]] = [{"id": f"image {k}", "split": split_of_image[k]} for k in range(n)]
    for k, problem in (problems or {}).items():
        images[k]["problem"] = problem
    pairs = [
        {"id": f"pair {k}", "split": split_of_image[k // 2], "image": k // 2, "text": f"text {k}"} for k in range(m)
    ]
    for name, rows in (("images", images), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pooled = np.arange(n, dtype=np.float16)[:, None].repeat(3, axis=1)
    pooled[list(problems or {})] = np.nan
    sentences = np.arange(m, dtype=np.float16)[:, None].repeat(2, axis=1)
    np.save(folder / "pooled.npy", pooled)
    np.save(folder / "sentences.npy", sentences)
    arrays = {"pooled": {"shape": pooled.shape}, "sentences": {"shape": sentences.shape}}
    write_json(
        folder / "features.json",
        {"name": "small", "has_splits": has_splits, "splits": dict(splits), "arrays": arrays},
    )
    return folder
