"""Precomputed features in the layout of the published datasets: `{split}_ims.npy` and `{split}_caps.txt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sremkit.data.features import MappedFeatures, open_npy
from sremkit.data.format_utils import choose_split, read_lines
from sremkit.data.formats import EXAMPLE_TEXTS, FORMATS
from sremkit.data.pairs import OnError, Pairs, Problems
from sremkit.errors import DataError

FEATURE_ENDINGS = ("_ims.npy", "_feat.npy")
CAPTION_ENDINGS = ("_caps.txt", "_caps.tsv")
COMMON_REPETITION = 5
SAMPLED_GROUPS = 32


@FORMATS.register("precomp")
class Precomp:
    """Folder of {split}_ims.npy (or _feat.npy) and {split}_caps.txt (or .tsv: image id, caption).

    Captions k*i to k*i+k-1 belong to image row i. A file with as many rows as captions is either 1:1 or repeats every
    row five times, as dev and test files usually do; this is found by comparing rows.
    """

    @staticmethod
    def recognizes(path: Path) -> bool:
        return path.is_dir() and bool(_splits(path))

    @staticmethod
    def read(path: Path, *, split: str, on_error: OnError = "raise", captions_per_image: int | None = None) -> Pairs:
        """Read one split; skipped captions do not change the numbers of images.

        Args:
            captions_per_image: by default found from the numbers of rows and captions.
        """
        problems = Problems(on_error)
        found = choose_split(split, _splits(path), path)
        features_path = _first_existing(path, found, FEATURE_ENDINGS)
        captions_path = _first_existing(path, found, CAPTION_ENDINGS)
        captions, caption_image_ids = _captions(captions_path, problems)
        features = MappedFeatures(features_path)
        per_image = _captions_per_image(features, captions_path, captions, captions_per_image)
        num_images = len(captions) // per_image
        if num_images != features.num_file_rows:  # rows are repeated: use the first of each group
            first_rows = np.arange(0, features.num_file_rows, per_image)
            features = MappedFeatures(features_path, row_of_item=first_rows)
        kept = _not_empty(captions_path, captions, problems)
        return Pairs(
            name=path.name,
            split=found,
            pair_ids=[str(k) for k in kept],
            texts=[str(captions[k]) for k in kept],
            image_of_text=kept // per_image,
            image_ids=_image_ids(path / f"{found}_ids.txt", caption_image_ids, num_images, per_image),
            image_features=features,
            skipped=problems.skipped(),
        )

    @staticmethod
    def example(folder: Path) -> tuple[Path, dict[str, Any]]:
        np.save(folder / "train_ims.npy", np.eye(2, dtype=np.float32)[:, None])  # (2, 1, 2)
        (folder / "train_caps.txt").write_text("".join(f"{text}\n" for text in EXAMPLE_TEXTS))
        return folder, {}


def _splits(folder: Path) -> set[str]:
    """Splits with both files."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the one that holds train_ims.npy and train_caps.txt")
    names = {file.name for file in folder.iterdir()}
    features, captions = (
        {name.removesuffix(ending) for name in names for ending in endings if name.endswith(ending)}
        for endings in (FEATURE_ENDINGS, CAPTION_ENDINGS)
    )
    return features & captions


def _first_existing(folder: Path, split: str, endings: tuple[str, ...]) -> Path:
    return next(file for ending in endings if (file := folder / f"{split}{ending}").exists())


def _captions(path: Path, problems: Problems) -> tuple[list[str | None], list[str] | None]:
    """The caption of each line, None for a bad line; a .tsv also has image ids."""
    lines = read_lines(path, problems)
    if path.suffix == ".txt":
        return [line if line is None else line.strip() for line in lines], None
    captions: list[str | None] = []
    image_ids: list[str] = []
    for number, line in enumerate(lines, start=1):
        fields = [] if line is None else line.split("\t")
        if line is not None and len(fields) < 2:
            problems.report(f"{path}, line {number}", "no tab", "write the image id, a tab and the caption")
        image_ids.append(fields[0].strip() if fields else "")
        captions.append(fields[1].strip() if len(fields) > 1 else None)
    return captions, image_ids


def _captions_per_image(
    features: MappedFeatures, captions_path: Path, captions: list[str | None], forced: int | None
) -> int:
    num_rows, num_captions = features.num_file_rows, len(captions)
    counts = f"{features.path} has {num_rows} rows and {captions_path} has {num_captions} captions"
    if captions and captions[-1] == "":
        counts += " (its last line is blank)"
    if forced is not None and forced < 1:
        raise DataError(f"captions_per_image must be at least 1, got {forced}")
    if num_captions == 0 or num_rows == 0:
        raise DataError(f"{counts}; neither may be empty")
    if num_rows == num_captions:
        return _repetition(features, forced)
    per_image, left_over = divmod(num_captions, num_rows)
    if left_over:
        raise DataError(f"{counts}: not a multiple; check that both are of the same split and complete")
    if forced not in (None, per_image):
        raise DataError(f"{counts}: {per_image} to a row, not {forced}; leave captions_per_image out")
    return per_image


def _repetition(features: MappedFeatures, forced: int | None) -> int:
    """How often a file with as many rows as captions repeats each row."""
    times = COMMON_REPETITION if forced is None else forced
    num_groups, left_over = divmod(features.num_file_rows, times)
    if times == 1 or (forced is None and (left_over or not num_groups)):
        return 1
    if left_over:
        raise DataError(
            f"{features.path} has {features.num_file_rows} rows, not a multiple of captions_per_image={times}"
        )
    rows = open_npy(features.path)
    sampled = np.unique(np.linspace(0, num_groups - 1, SAMPLED_GROUPS).astype(np.int64))
    # Bytes, not numbers: NaN is unequal to itself.
    groups = ({row.tobytes() for row in rows[times * group : times * (group + 1)]} for group in sampled)
    repeated = np.array([len(distinct) == 1 for distinct in groups])
    if repeated.all():
        return times
    if forced is None and not repeated.any():
        return 1
    odd = times * int(sampled[np.argmin(repeated)])
    raise DataError(
        f"{features.path} is only partly repeated {times} times: rows {odd} to {odd + times - 1} differ; "
        "pass captions_per_image=1 if each caption has an image of its own, else make the file again"
    )


def _not_empty(path: Path, captions: list[str | None], problems: Problems) -> np.ndarray:
    for k, caption in enumerate(captions):
        if caption == "":
            problems.report(f"{path}, line {k + 1}", "the caption is empty", "write one; do not remove the line")
    return np.array([k for k, caption in enumerate(captions) if caption], dtype=np.int64)


def _image_ids(path: Path, of_caption: list[str] | None, num_images: int, per_image: int) -> list[str]:
    """Ids from `{split}_ids.txt` (one line per image or per caption), from the .tsv, or numbers."""
    if path.exists():
        ids = [str(line).strip() for line in read_lines(path, Problems())]
    elif of_caption is not None:
        ids = of_caption
    else:
        return [str(k) for k in range(num_images)]
    if len(ids) == num_images * per_image:
        return ids[::per_image]
    if len(ids) != num_images:
        raise DataError(
            f"{path} has {len(ids)} lines for {num_images} images with {per_image} captions each; "
            "remove it or make it again"
        )
    return ids
