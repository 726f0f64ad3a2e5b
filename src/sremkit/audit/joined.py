"""Several splits as one collection, and some of its pairs with only the images they need."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from sremkit.data.all_splits import Collection
from sremkit.data.feature_folder import SelectedImages
from sremkit.data.pairs import FeatureRows, FeatureSource, Pairs, SelectedRows, Skipped
from sremkit.features.rows import JoinedImages

REPEATED = "the id has appeared before"


@dataclass(frozen=True, eq=False)
class Joined:
    """All pairs of a collection."""

    pairs: Pairs
    split_of_pair: list[str] | None  # None where the collection has no splits
    repeated_rows: tuple[int, ...] = ()  # rows of a table that were left out because of their id


def join(collection: Collection) -> Joined:
    """The pairs of all splits one after another; an id that an earlier split has had is left out."""
    parts = list(collection.pairs.values())
    if len(parts) == 1:
        split = [parts[0].split] * len(parts[0]) if collection.has_splits else None
        return Joined(parts[0], split)
    seen: set[str] = set()
    places = [place for part in parts for place in part.skipped.places]
    repeated_rows: list[int] = []
    fresh: list[Pairs] = []
    for part in parts:
        rows = [k for k, pair_id in enumerate(part.pair_ids) if pair_id not in seen]
        for k in sorted(set(range(len(part))).difference(rows)):
            if part.source_rows is not None:
                repeated_rows.append(int(part.source_rows[k]))
            else:
                places.append((f"{part.name} ({part.split}), pair {part.pair_ids[k]}", REPEATED))
        seen.update(part.pair_ids)
        if rows:
            fresh.append(part if len(rows) == len(part) else part.select(np.array(rows)))
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
    split_of_pair = [part.split for part in fresh for _ in range(len(part))]
    return Joined(pairs, split_of_pair, tuple(repeated_rows))


def compact(pairs: Pairs, rows: np.ndarray) -> Pairs:
    """Only these pairs, with only the images that they are given with, renumbered."""
    chosen = pairs.select(rows)
    used, numbers = np.unique(chosen.image_of_text, return_inverse=True)
    images, features = pairs.images, pairs.image_features
    return replace(
        chosen,
        image_of_text=numbers.astype(np.int64),
        image_ids=[pairs.image_ids[k] for k in used],
        images=None if images is None else SelectedImages(images, used),
        image_features=None if features is None else SelectedRows(features, used),
    )


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
        values: np.ndarray | None = None
        mask: np.ndarray | None = None
        part_of_row = np.array([bisect_right(self._starts, k) - 1 for k in indices])
        for part in np.unique(part_of_row):
            here = part_of_row == part
            taken = self.sources[part].rows(indices[here] - self._starts[part])
            if values is None:
                values = np.zeros((len(indices), *taken.values.shape[1:]), dtype=np.float32)
                mask = None if taken.mask is None else np.zeros(values.shape[:2], dtype=bool)
            values[here] = taken.values
            if mask is not None:
                mask[here] = taken.mask
        assert values is not None
        return FeatureRows(values, mask)


class MeanOfRegions:
    """One vector an image, where the source has one a region: the mean of those that are present."""

    def __init__(self, source: FeatureSource) -> None:
        self.source = source

    @property
    def dim(self) -> int:
        return self.source.dim

    def __len__(self) -> int:
        return len(self.source)

    def rows(self, indices: np.ndarray) -> FeatureRows:
        values, mask = self.source.rows(indices)
        if mask is None:
            return FeatureRows(values, None)
        present = mask[:, :, None].astype(np.float32)  # (k, r, 1)
        return FeatureRows((values * present).sum(axis=1) / present.sum(axis=1), None)


def _joined(parts: list, join):
    return None if any(part is None for part in parts) else join(parts)
