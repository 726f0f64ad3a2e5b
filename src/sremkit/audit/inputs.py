"""Inputs of an audit: files in any format, embeddings, a training run, or pairs in memory.

Every row of the input keeps its place. A row that does not become a pair stays, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sremkit.audit.scoring.near_duplicates import row_keys
from sremkit.config.recipes import load_recipe
from sremkit.data.csv_parquet import SourceTable
from sremkit.data.features import ArrayFeatures, MappedFeatures
from sremkit.data.formats import FORMATS, Collection, find_format, read_collection
from sremkit.data.images import JoinedImages, TarImages
from sremkit.data.pairs import MISSING, FeatureRows, FeatureSource, Pairs, SelectedRows, Skipped
from sremkit.data.training_pairs import noise_for, read_training_pairs
from sremkit.errors import DataError, UserError

REPEATED = "the id has appeared before"


class Problem(NamedTuple):
    """Why a row cannot be scored."""

    reason: str  # short, so that equal reasons can be counted
    message: str  # with the details of this row


@dataclass(frozen=True, eq=False)
class SourceRows:
    """The rows of the input in their order, whether they became pairs or not."""

    pair_of_row: np.ndarray  # (rows,) int64, MISSING where the row did not become a pair
    problems: dict[int, Problem]  # by row
    columns: dict[str, Any] = field(default_factory=dict)  # the user's own: a list or an Arrow array each
    roles: dict[str, str] = field(default_factory=dict)  # the user's columns for "id", "image" and "text"

    def __len__(self) -> int:
        return len(self.pair_of_row)


@dataclass(frozen=True, eq=False)
class Source:
    """The pairs to score, and the input rows they come from."""

    pairs: Pairs
    rows: SourceRows
    facts: dict[str, Any] = field(default_factory=dict)  # origin, for the summary and for exports
    has_texts: bool = True  # False for embeddings without captions


def open_source(path: str | Path, *, format: str | None = None, split: str | None = None, **options: Any) -> Source:
    """Read the pairs at `path`, by default of all splits and in the format that recognises the path.

    Args:
        options: options of the format, such as image= and text= for the columns of a table.
    """
    path = Path(path)
    if not path.exists() and "{" not in path.name and str(path) != "scenes":
        raise DataError(f"{path} does not exist; check the spelling")
    format = format or find_format(path)
    options = {name: value for name, value in options.items() if value is not None}
    splits = None if split is None else [split]
    collection = read_collection(path, splits=splits, format=format, keep_rows=True, **options)
    pairs, split_of_pair, repeated_rows = join_splits(collection)
    if collection.table is not None:
        rows = rows_of_table(collection.table, pairs, repeated_rows)
    else:
        columns = {} if split_of_pair is None else {"split": split_of_pair}
        rows = rows_of_pairs(pairs, {**columns, **_shards(format, pairs)})
    shown = {name: value if isinstance(value, bool) else str(value) for name, value in options.items()}
    return Source(pairs, rows, {"path": str(path.absolute()), "format": format, "split": split, "options": shown})


def reopen_source(facts: Mapping[str, Any], num_rows: int) -> Source:
    """The input of a finished audit, of which the facts are known; it must have as many rows as then."""
    path, format = str(facts.get("path")), facts.get("format")
    if format == "run":
        source = source_of_run(path)
    elif format not in FORMATS:
        raise DataError(f"these pairs were in memory ({format}), and only the table of the audit is on disk")
    else:
        source = open_source(path, format=format, split=facts.get("split"), **facts.get("options", {}))
    if len(source.rows) != num_rows:
        raise DataError(f"{path} has changed since the audit: {len(source.rows):,} rows, then {num_rows:,}")
    return source


def source_of_pairs(pairs: Pairs) -> Source:
    """Use pairs in memory."""
    return Source(pairs, rows_of_pairs(pairs), {"path": pairs.name, "format": "pairs", "split": pairs.split})


def source_of_run(folder: str | Path) -> Source:
    """Read the training pairs of a run, with the noise that was injected into them."""
    folder = Path(folder)
    config = folder / "config.toml"
    if not config.exists():
        raise UserError(f"{folder} holds no run (there is no config.toml in it)")
    recipe = load_recipe(config, warn_renamed=False)
    clean = read_training_pairs(recipe.data)
    pairs = clean.paired_as(noise_for(recipe.noise, clean).image_of_text)
    facts = {"path": str(folder.absolute()), "format": "run", "split": recipe.data.train_split}
    return Source(pairs, rows_of_pairs(pairs), facts)


def source_of_embeddings(
    image_emb: np.ndarray | str | Path,
    text_emb: np.ndarray | str | Path,
    *,
    ids: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    name: str = "embeddings",
) -> Source:
    """Use arrays or .npy files of which row k is pair k. Equal image rows count as the same image."""
    images, sentences = _features(image_emb, "image embeddings"), _features(text_emb, "text embeddings")
    if len(images) != len(sentences):
        raise DataError(
            f"there are {len(images):,} image embeddings for {len(sentences):,} text embeddings; row k of both "
            "must be pair k, so repeat the row of an image that has several texts"
        )
    for what, values in (("ids", ids), ("texts", texts)):
        if values is not None and len(values) != len(sentences):
            raise DataError(f"there are {len(values):,} {what} for {len(sentences):,} embeddings; give one for each")
    first_row, image_of_text = _distinct_rows(image_emb)
    pair_ids = [str(k) for k in range(len(sentences))] if ids is None else [str(k).strip() for k in ids]
    pairs = Pairs(
        name=name,
        split="all",
        pair_ids=pair_ids,
        texts=[""] * len(sentences) if texts is None else list(texts),
        image_of_text=image_of_text,
        image_ids=[pair_ids[k] for k in first_row],
        image_features=SelectedRows(images, first_row),
        text_features=sentences,
    )
    facts = {"path": name, "format": "embeddings", "split": None}
    return Source(pairs, rows_of_pairs(pairs), facts, has_texts=texts is not None)


def _features(embeddings: np.ndarray | str | Path, name: str) -> FeatureSource:
    if isinstance(embeddings, str | Path):
        return MappedFeatures(embeddings)
    return ArrayFeatures(np.asarray(embeddings), name=name)


def _distinct_rows(embeddings: np.ndarray | str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each distinct image, and for each row the number of its image."""
    array = np.load(embeddings, mmap_mode="r", allow_pickle=False) if isinstance(embeddings, str | Path) else embeddings
    _, first_row, member_of = np.unique(row_keys(array), return_index=True, return_inverse=True)
    order = np.argsort(first_row)
    return first_row[order], np.argsort(order)[member_of.reshape(-1)]


def _shards(format: str, pairs: Pairs) -> dict[str, list[str]]:
    """Return a column with the tar file of each pair, from which an export copies it."""
    images = pairs.images
    if format != "webdataset" or images is None:
        return {}
    sources = getattr(images, "sources", [images])  # one for each split
    shard_of_image = [
        source.member(k).tar for source in sources if isinstance(source, TarImages) for k in range(len(source))
    ]
    return {"shard": [shard_of_image[k] for k in pairs.image_of_text]}


def rows_of_pairs(pairs: Pairs, columns: Mapping[str, list] | None = None) -> SourceRows:
    """Return one row for each pair, then one for each item that the reader skipped; `columns` are those of pairs."""
    places = pairs.skipped.places
    pair_of_row = np.concatenate([np.arange(len(pairs)), np.full(len(places), MISSING)]).astype(np.int64)
    problems = {len(pairs) + k: Problem(reason, f"{where}: {reason}") for k, (where, reason) in enumerate(places)}
    padded = {name: [*values, *[None] * len(places)] for name, values in (columns or {}).items()}
    return SourceRows(pair_of_row, problems, padded)


def rows_of_table(table: SourceTable, pairs: Pairs, repeated_rows: Iterable[int]) -> SourceRows:
    """Return the rows of a table with all their columns, without those of other splits.

    `pairs` were made of it, without the rows of these numbers, whose ids an earlier split has.
    """
    assert pairs.source_rows is not None
    pair_of_number = {int(number): k for k, number in enumerate(pairs.source_rows)}
    problems = {number: (table.table.where(number), REPEATED) for number in repeated_rows} | table.problems
    numbers = sorted({*pair_of_number, *problems})
    return SourceRows(
        np.array([pair_of_number.get(number, MISSING) for number in numbers], dtype=np.int64),
        {
            k: Problem(problems[number][1], ": ".join(problems[number]))
            for k, number in enumerate(numbers)
            if number not in pair_of_number
        },
        dict(zip(table.columns, table.table.take(numbers), strict=True)),
        table.roles,
    )


def join_splits(collection: Collection) -> tuple[Pairs, list[str] | None, list[int]]:
    """Concatenate the splits of a collection, without pairs whose id an earlier split has.

    Returns the pairs; the split of each pair, or None without splits; the table rows that were left out.
    """
    parts = list(collection.pairs.values())
    if len(parts) == 1:
        return parts[0], [parts[0].split] * len(parts[0]) if collection.has_splits else None, []
    seen: set[str] = set()
    places = [place for part in parts for place in part.skipped.places]
    repeated_rows: list[int] = []
    fresh: list[Pairs] = []
    for part in parts:
        is_new = np.array([pair_id not in seen for pair_id in part.pair_ids])
        for k in np.flatnonzero(~is_new).tolist():
            if part.source_rows is not None:
                repeated_rows.append(int(part.source_rows[k]))
            else:
                places.append((f"{part.name} ({part.split}), pair {part.pair_ids[k]}", REPEATED))
        seen.update(part.pair_ids)
        if is_new.any():
            fresh.append(part if is_new.all() else part.select(np.flatnonzero(is_new)))
    starts = [0, *accumulate(part.num_images for part in fresh)]
    pairs = Pairs(
        name=fresh[0].name,
        split="all",
        pair_ids=[pair_id for part in fresh for pair_id in part.pair_ids],
        texts=[text for part in fresh for text in part.texts],
        image_of_text=np.concatenate([p.image_of_text + s for p, s in zip(fresh, starts, strict=False)]),
        image_ids=[image_id for part in fresh for image_id in part.image_ids],
        images=_joined([part.images for part in fresh], JoinedImages),
        image_features=_joined([part.image_features for part in fresh], JoinedFeatures),
        text_features=_joined([part.text_features for part in fresh], JoinedFeatures),
        skipped=Skipped(places=tuple(places)),
        source_rows=_joined([part.source_rows for part in fresh], np.concatenate),
    )
    return pairs, [part.split for part in fresh for _ in range(len(part))], repeated_rows


def _joined(parts: list, join: Callable[[list], Any]) -> Any:
    return None if any(part is None for part in parts) else join(parts)


class JoinedFeatures:
    """The features of several sources under consecutive numbers."""

    def __init__(self, sources: Sequence[FeatureSource]) -> None:
        self.sources = sources
        self._starts = [0, *accumulate(len(source) for source in sources)]

    @property
    def dim(self) -> int:
        return self.sources[0].dim

    def __len__(self) -> int:
        return self._starts[-1]

    def rows(self, indices: np.ndarray) -> FeatureRows:
        indices = np.asarray(indices, dtype=np.int64)
        source_of = np.searchsorted(self._starts, indices, side="right") - 1
        places = [np.flatnonzero(source_of == k) for k in range(len(self.sources))]
        found = [
            source.rows(indices[here] - start)
            for source, start, here in zip(self.sources, self._starts, places, strict=False)
            if len(here)
        ]
        order = np.argsort(np.concatenate(places))
        mask = _joined([part.mask for part in found], np.concatenate)
        values = np.concatenate([part.values for part in found])[order]
        return FeatureRows(values, None if mask is None else mask[order])
