"""What an audit can be made of: files in any format, embeddings, a finished run, or pairs in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.audit.joined import REPEATED, join
from sremkit.audit.own_rows import OwnRows, rows_of_pairs, rows_of_table
from sremkit.data.all_splits import read_collection
from sremkit.data.features import ArrayFeatures, MappedFeatures
from sremkit.data.formats import find_format
from sremkit.data.images import TarImages
from sremkit.data.pairs import FeatureSource, Pairs, SelectedRows
from sremkit.data.recipe_pairs import noise_for, read_training_pairs
from sremkit.errors import DataError, UserError
from sremkit.recipes import load_recipe


@dataclass(frozen=True, eq=False)
class Source:
    """The pairs to judge, and every row that the user has given."""

    pairs: Pairs
    rows: OwnRows
    facts: dict[str, Any] = field(default_factory=dict)  # where it came from, for the summary and for exports
    has_texts: bool = True  # embeddings may come without


def open_source(
    path: str | Path, *, format: str | None = None, split: str | None = None, **options: Any
) -> Source:
    """The pairs at `path`, all splits of them or one, in the named format or in the one that recognises it.

    Args:
        options: the format's own, such as image= and text= for the columns of a table.
    """
    path = Path(path)
    if not path.exists() and "{" not in path.name and str(path) != "scenes":
        raise DataError(f"{path} does not exist; check the spelling")
    format = format or find_format(path)
    options = {name: value for name, value in options.items() if value is not None}
    collection = read_collection(path, splits=None if split is None else [split], format=format, **options)
    joined = join(collection)
    pairs = joined.pairs
    if format == "table":
        rows = rows_of_table(path, pairs, options, dict.fromkeys(joined.repeated_rows, REPEATED))
    else:
        columns = {} if joined.split_of_pair is None else {"split": joined.split_of_pair}
        rows = rows_of_pairs(pairs, {**columns, **_shards(format, pairs)})
    said = {name: str(value) for name, value in options.items()}
    facts = {"path": str(path.absolute()), "format": format, "split": split, "options": said}
    return Source(pairs, rows, facts)


def source_of_pairs(pairs: Pairs) -> Source:
    """Pairs in memory."""
    return Source(pairs, rows_of_pairs(pairs), {"path": pairs.name, "format": "pairs", "split": pairs.split})


def source_of_run(folder: str | Path) -> Source:
    """The training pairs of a run, as they were given to it."""
    folder = Path(folder)
    config = folder / "config.toml"
    if not config.exists():
        raise UserError(f"{folder} holds no run (there is no config.toml in it)")
    recipe = load_recipe(config)
    clean = read_training_pairs(recipe.data)
    pairs = clean.paired_as(noise_for(recipe.noise, clean).image_of_text)
    return Source(
        pairs,
        rows_of_pairs(pairs),
        {"path": str(folder.absolute()), "format": "run", "split": recipe.data.train_split},
    )


def source_of_embeddings(
    image_emb: np.ndarray | str | Path,
    text_emb: np.ndarray | str | Path,
    *,
    ids: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    name: str = "embeddings",
) -> Source:
    """Row k of both arrays, or .npy files, is pair k. Equal image rows are taken for the same image."""
    images, sentences = _features(image_emb, "image embeddings"), _features(text_emb, "text embeddings")
    if len(images) != len(sentences):
        raise DataError(
            f"there are {len(images):,} image embeddings for {len(sentences):,} text embeddings; row k of both "
            "must be pair k, so repeat the row of an image that has several texts"
        )
    first, image_of_text = _distinct_rows(image_emb)
    for what, given in (("ids", ids), ("texts", texts)):
        if given is not None and len(given) != len(sentences):
            raise DataError(
                f"there are {len(given):,} {what} for {len(sentences):,} embeddings; give one each"
            )
    pair_ids = [str(k) for k in range(len(sentences))] if ids is None else [str(k).strip() for k in ids]
    pairs = Pairs(
        name=name,
        split="all",
        pair_ids=pair_ids,
        texts=[""] * len(sentences) if texts is None else list(texts),
        image_of_text=image_of_text,
        image_ids=[pair_ids[k] for k in first],
        image_features=SelectedRows(images, first),
        text_features=sentences,
    )
    facts = {"path": name, "format": "embeddings", "split": None}
    return Source(pairs, rows_of_pairs(pairs), facts, has_texts=texts is not None)


def _features(embeddings: np.ndarray | str | Path, what: str) -> FeatureSource:
    if isinstance(embeddings, str | Path):
        return MappedFeatures(embeddings)
    return ArrayFeatures(np.asarray(embeddings), name=what)


def _distinct_rows(embeddings: np.ndarray | str | Path) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each different image, and for each row the number of its image."""
    array = embeddings
    if isinstance(array, str | Path):
        array = np.load(array, mmap_mode="r", allow_pickle=False)
    first: list[int] = []
    number_of: dict[bytes, int] = {}
    image_of_row = np.empty(len(array), dtype=np.int64)
    for k, row in enumerate(np.asanyarray(array)):
        key = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
        number = image_of_row[k] = number_of.setdefault(key, len(first))
        if number == len(first):
            first.append(k)
    return np.array(first, dtype=np.int64), image_of_row


def _shards(format: str, pairs: Pairs) -> dict[str, list[str]]:
    """The archive that each pair lies in, where exports may want to copy it from there."""
    images = pairs.images
    if format != "webdataset" or images is None:
        return {}
    sources = getattr(images, "sources", [images])  # one a split, where there are splits
    shard_of_image = [
        source.member(k).tar
        for source in sources
        if isinstance(source, TarImages)
        for k in range(len(source))
    ]
    return {"shard": [shard_of_image[k] for k in pairs.image_of_text]}
