"""The pairs that a recipe speaks of: read, cut down to its keep-list, and made wrong where it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sremkit.data.formats import read_pairs
from sremkit.data.keep_list import keep_only
from sremkit.data.noise import Noise, load_noise, make_noise
from sremkit.data.pairs import Pairs
from sremkit.data.paths import resolve_source
from sremkit.recipes import DataSettings, NoiseSettings


def read_split(data: DataSettings, split: str, **more: Any) -> Pairs:
    """Read one split of a recipe's data."""
    source = resolve_source(data.source)
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
