"""The pairs of a recipe: where the data are, which pairs a keep-list selects, which noise is injected."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sremkit.config.recipes import DataSettings, NoiseSettings
from sremkit.data.format_utils import read_lines
from sremkit.data.formats import read_pairs
from sremkit.data.noise import Noise, load_noise, make_noise
from sremkit.data.pairs import MISSING, Pairs, Problems
from sremkit.errors import DataError


def resolve_source(source: str) -> str:
    """Expand `~` and `$SREMKIT_DATA`, the folder of the data sets; by default a folder next to the project."""
    root = Path(os.environ.get("SREMKIT_DATA", "../shared/data"))
    return os.path.expanduser(source.replace("$SREMKIT_DATA", str(root)))


def read_split(data: DataSettings, split: str, **more: Any) -> Pairs:
    """Read one split of a recipe's data."""
    source = resolve_source(data.source)
    if "$SREMKIT_DATA" in data.source and not Path(source).exists():
        raise DataError(
            f"the recipe's data are not at {source}; set the variable SREMKIT_DATA to the folder that holds "
            f"{Path(source).name}, or give their path with --set data.source=PATH"
        )
    return read_pairs(source, split=split, format=data.format, **{**data.options, **more})


def read_training_pairs(data: DataSettings) -> Pairs:
    """Read the training pairs without injected noise; only those of the recipe's keep-list, if it has one."""
    pairs = read_split(data, data.train_split, **data.train_options)
    return pairs if data.keep is None else keep_only(pairs, resolve_source(data.keep))


def noise_for(settings: NoiseSettings, clean: Pairs) -> Noise:
    """Load or make the recipe's noise for these pairs."""
    if settings.file is not None:
        path = Path(resolve_source(settings.file))
        return load_noise(path, clean.image_of_text, num_images=clean.num_images)
    vectors = None
    if settings.protocol == "near" and clean.text_features is not None:
        vectors = clean.text_features.rows(np.arange(len(clean))).values
    return make_noise(
        clean.image_of_text,
        rate=settings.rate,
        protocol=settings.protocol,
        seed=settings.seed,
        texts=clean.texts,
        vectors=vectors,
    )


class NoisyPairs(NamedTuple):
    """Pairs to train on, and the truth about them."""

    pairs: Pairs
    true_image: np.ndarray  # (m,) the image that each text belongs to; MISSING if it is not in the collection
    is_noisy: np.ndarray  # (m,) bool


def with_noise(clean: Pairs, noise: Noise, *, leave_out: np.ndarray | None = None) -> NoisyPairs:
    """The pairs with their noise. Where captions are left out, images that no caption is paired with are too.

    Args:
        leave_out: (m,) bool: texts that are not trained on.
    """
    if noise.texts is not None:
        clean = clean.with_texts(noise.texts)
    used = noise.is_used if leave_out is None else noise.is_used & ~leave_out
    rows = np.flatnonzero(used)
    true_image = clean.image_of_text[rows]
    pairs = clean.select(rows).paired_as(noise.image_of_text[rows])
    if not noise.is_used.all():
        images = np.unique(noise.image_of_text[noise.is_used])
        number = np.full(clean.num_images, MISSING)
        number[images] = np.arange(len(images))
        pairs, true_image = pairs.select_images(images), number[true_image]
    return NoisyPairs(pairs, true_image, noise.is_noisy[rows])


def are_trained_on(pairs: Pairs, train: Pairs, *, sample: int = 1000) -> bool:
    """Whether evaluation pairs are among the training pairs, as in a collection without splits.

    Compares image and text of a sample, because ids may be numbered anew in each split. Up to 5 % may coincide.
    """

    def content(some: Pairs, limit: int) -> list[tuple[str, str]]:
        return [(some.image_ids[some.image_of_text[k]], some.texts[k]) for k in range(min(limit, len(some)))]

    sampled = set(content(pairs, sample))
    return len(sampled.intersection(content(train, len(train)))) > 0.05 * len(sampled)


def read_keep_list(path: str | Path) -> list[str]:
    """Read a keep-list: the ids of the pairs to train on, one per line; blank lines are ignored."""
    ids = [line.strip() for line in read_lines(Path(path), Problems("raise")) if line and line.strip()]
    if not ids:
        raise DataError(f"{path} holds no ids; write one per line, or make it with `srem export`")
    return ids


def keep_list_lines(ids: Iterable[str]) -> Iterator[str]:
    """The lines of a keep-list; an id that cannot be read back from its line is refused."""
    for pair_id in ids:
        if "\n" in pair_id or "\r" in pair_id or pair_id != pair_id.strip() or not pair_id:
            raise DataError(
                f"the id {pair_id!r:.80} does not fit on a line of a keep-list; choose another id column, "
                "or export the pairs themselves as CSV or Parquet"
            )
        yield f"{pair_id}\n"


def keep_only(pairs: Pairs, path: str | Path) -> Pairs:
    """Select the pairs whose ids are in the keep-list at `path`, in the order of `pairs`."""
    wanted = set(read_keep_list(path))
    unknown = wanted.difference(pairs.pair_ids)
    if unknown:
        raise DataError(
            f"{len(unknown):,} of the {len(wanted):,} ids in {path} match no pair of {pairs.name} "
            f"({pairs.split}), such as '{min(unknown)}'; its ids look like '{pairs.pair_ids[0]}'. Make the "
            "list from the same data and the same split (`srem export --split train`)"
        )
    return pairs.select(np.array([k for k, pair_id in enumerate(pairs.pair_ids) if pair_id in wanted]))
