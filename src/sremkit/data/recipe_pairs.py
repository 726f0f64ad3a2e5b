"""The pairs that a recipe speaks of: read, cut down to its keep-list, and made wrong where it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sremkit.data.formats import read_pairs
from sremkit.data.keep_list import keep_only
from sremkit.data.noise import Noise, load_noise, make_noise
from sremkit.data.pairs import Pairs
from sremkit.data.paths import resolve_source
from sremkit.errors import DataError
from sremkit.recipes import DataSettings, NoiseSettings


def read_split(data: DataSettings, split: str, **more: Any) -> Pairs:
    """Read one split of a recipe's data."""
    source = resolve_source(data.source)
    if "$SREMKIT_DATA" in data.source and not Path(source).exists():
        raise DataError(
            f"the recipe's data are not at {source}; set the variable SREMKIT_DATA to the folder that holds "
            f"{Path(source).name}, or say where they are with --set data.source=PATH"
        )
    return read_pairs(source, split=split, format=data.format, **{**data.options, **more})


def read_training_pairs(data: DataSettings) -> Pairs:
    """The training pairs before any noise; only those of the keep-list, where the recipe names one."""
    pairs = read_split(data, data.train_split, **data.train_options)
    return pairs if data.keep is None else keep_only(pairs, resolve_source(data.keep))


def noise_for(settings: NoiseSettings, clean: Pairs) -> Noise:
    """The noise that the recipe wants in these pairs."""
    if settings.file is not None:
        path = Path(resolve_source(settings.file))
        return load_noise(path, clean.image_of_text, num_images=clean.num_images)
    return make_noise(clean.image_of_text, rate=settings.rate, protocol=settings.protocol, seed=settings.seed)


def are_trained_on(pairs: Pairs, train: Pairs, *, sample: int = 1000) -> bool:
    """Whether pairs to be measured on are among the training pairs, as where a collection has no splits.

    By image and text, because ids may be counted anew in each split; a few in a hundred may be alike by chance.
    """

    def content(some: Pairs, limit: int) -> list[tuple[str, str]]:
        return [(some.image_ids[some.image_of_text[k]], some.texts[k]) for k in range(min(limit, len(some)))]

    asked = set(content(pairs, sample))
    return len(asked.intersection(content(train, len(train)))) > 0.05 * len(asked)
