"""Collections for the bench of the audit: right pairs with vectors, of which some are made wrong.

`flickr8k-five` and `flickr8k-one` have five captions an image and one; `scenes` is generated; any other name is a file
of pairs with a column that says which are wrong, to which nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.audit.embed import Encoders, embed_pairs, inspect_inputs
from sremkit.audit.inputs import open_source
from sremkit.bench.scene_vectors import SceneCaptionVectors, scene_image_vectors
from sremkit.bench.wrong_captions import EXCHANGES, choose_rows, exchange_word
from sremkit.data import Pairs, read_pairs
from sremkit.data.features import ArrayFeatures
from sremkit.data.generated.scenes import make_scenes
from sremkit.data.images import only_used_images
from sremkit.data.training_pairs import resolve_source
from sremkit.errors import UserError
from sremkit.features.encoders.minilm import MiniLMEncoder
from sremkit.io import atomic_write, digest

COLLECTIONS = ("flickr8k-five", "flickr8k-one", "scenes")
FLICKR8K = "$SREMKIT_DATA/flickr8k"
SPLITS = ("train", "val", "test")
CAPTIONS_PER_SCENE = 5
MORE_SCENES = 1.5  # times the scenes that are used: the captions of the others are those of absent images
GIVEN = "given"  # the kind of wrong captions that a file has by itself
YES, NO = {"1", "true", "yes", "wrong"}, {"0", "false", "no", "right"}


@dataclass(frozen=True, eq=False)
class RightPairs:
    """A collection without wrong pairs, larger than what is drawn from it."""

    image_emb: np.ndarray  # (n, d)
    text_emb: np.ndarray  # (m, e)
    texts: Sequence[str]  # (m,)
    image_of_text: np.ndarray  # (m,)
    captions_per_image: int
    encode: Callable[[Sequence[str]], np.ndarray]  # vectors of other texts


@dataclass(frozen=True, eq=False)
class NoisyPairs:
    """Pairs with vectors, some of them wrong, and the truth."""

    pairs: Pairs
    is_wrong: np.ndarray  # (m,) bool


def draw_pairs(data: str, *, kind: str, rate: float, size: int, seed: int, folder: Path | None = None) -> NoisyPairs:
    """About `size` pairs of a collection, a fraction of them wrong; equal arguments give equal pairs.

    Args:
        folder: keeps vectors of captions that had to be encoded, for the next detector.
    """
    right = read_right_pairs(data, size)
    if folder is not None:
        right = replace(right, encode=partial(_encode_once, right.encode, folder / "captions"))
    return make_wrong(right, kind=kind, rate=rate, size=size, seed=seed)


def read_right_pairs(data: str, size: int) -> RightPairs:
    """A collection by its name."""
    if data == "scenes":
        scenes = make_scenes(round(MORE_SCENES * size / CAPTIONS_PER_SCENE))
        vectors = SceneCaptionVectors(scenes.texts)
        return RightPairs(
            scene_image_vectors(scenes),
            vectors.encode(scenes.texts),
            scenes.texts,
            scenes.image_of_text,
            CAPTIONS_PER_SCENE,
            encode=vectors.encode,
        )
    if data not in COLLECTIONS:
        raise UserError(f"'{data}' is no collection of the bench: {', '.join(COLLECTIONS)}, or a file with --truth")
    splits = [read_pairs(resolve_source(FLICKR8K), split=split, format="flickr8k") for split in SPLITS]
    images = [_all_rows(part.image_features) for part in splits]
    before = np.cumsum([0, *(len(part) for part in images)])
    return RightPairs(
        np.concatenate(images),
        np.concatenate([_all_rows(part.text_features) for part in splits]),
        [text for part in splits for text in part.texts],
        np.concatenate([part.image_of_text + start for part, start in zip(splits, before, strict=False)]),
        captions_per_image=5 if data == "flickr8k-five" else 1,
        encode=MiniLMEncoder().encode,
    )


def make_wrong(right: RightPairs, *, kind: str, rate: float, size: int, seed: int) -> NoisyPairs:
    """Draw images with their captions and make a fraction of the captions wrong."""
    rng = np.random.default_rng([seed, 27])
    order = rng.permutation(len(right.image_emb))
    images = np.sort(order[: max(size // right.captions_per_image, 1)])
    if len(images) * right.captions_per_image < size:
        most = len(right.image_emb) * right.captions_per_image
        raise UserError(
            f"the collection has {most:,} pairs with that many captions an image; --sizes asks for {size:,}"
        )
    number = np.full(len(right.image_emb), -1)
    number[images] = np.arange(len(images))
    shuffled = rng.permutation(len(right.texts))
    by_image = shuffled[np.argsort(right.image_of_text[shuffled], kind="stable")]
    place = np.arange(len(by_image)) - np.searchsorted(right.image_of_text[by_image], right.image_of_text[by_image])
    rows = np.sort(by_image[(number[right.image_of_text[by_image]] >= 0) & (place < right.captions_per_image)])
    image_of_text = number[right.image_of_text[rows]]
    texts, text_emb = [right.texts[k] for k in rows], right.text_emb[rows].astype(np.float32)

    chosen = choose_rows(len(rows), rate, rng)
    if kind in EXCHANGES:
        caption = EXCHANGES[kind](chosen, image_of_text, texts, text_emb, rng)
        is_wrong = image_of_text[caption] != image_of_text
        texts, text_emb = [texts[k] for k in caption], text_emb[caption]
    elif kind == "absent":
        absent = rng.permutation(np.flatnonzero(number[right.image_of_text] < 0))[: len(chosen)]
        chosen = chosen[: len(absent)]
        is_wrong = np.zeros(len(rows), dtype=bool)
        is_wrong[chosen] = True
        for row, other in zip(chosen.tolist(), absent.tolist(), strict=True):
            texts[row] = right.texts[other]
        text_emb[chosen] = right.text_emb[absent]
    else:
        new = {row: text for row in chosen.tolist() if (text := exchange_word(texts[row], rng)) is not None}
        is_wrong = np.isin(np.arange(len(rows)), list(new))
        if new:
            text_emb[list(new)] = right.encode(list(new.values()))
        for row, text in new.items():
            texts[row] = text
    pairs = Pairs(
        name=f"{kind} {rate:g}",
        split="all",
        pair_ids=[str(k) for k in range(len(rows))],
        texts=texts,
        image_of_text=image_of_text,
        image_ids=[str(k) for k in images],
        image_features=ArrayFeatures(right.image_emb[images].astype(np.float32), name="bench"),
        text_features=ArrayFeatures(text_emb, name="bench"),
    )
    return NoisyPairs(pairs, is_wrong)


def read_labelled(
    path: str | Path, truth: str, *, folder: Path, size: int | None = None, seed: int = 0, **options: Any
) -> NoisyPairs:
    """Pairs of a file, with the column that says which are wrong: 1, true, yes or wrong.

    Args:
        folder: keeps the features that are extracted.
        size: draw so many pairs; by default all.
        options: how the file is read, as for `srem audit`.
    """
    source = open_source(path, **options)
    if truth not in source.rows.columns:
        known = ", ".join(map(str, source.rows.columns))
        raise UserError(f"{path} has no column '{truth}'; its columns are {known}")
    values = source.rows.columns[truth]
    labels = [str(value).strip().lower() for value in (values if isinstance(values, list) else values.to_pylist())]
    for row, label in enumerate(labels):
        if label not in YES | NO:
            raise UserError(f"{path}, row {row}: the column {truth} must be 1 (wrong) or 0 (right), got '{label}'")
    encoders = Encoders.default()
    inputs = inspect_inputs(source.pairs, encoders)
    embedded = embed_pairs(inputs, folder / inputs.key, encoders)
    row_of_pair = np.zeros(len(source.pairs), dtype=np.int64)
    used = source.rows.pair_of_row >= 0
    row_of_pair[source.rows.pair_of_row[used]] = np.flatnonzero(used)
    is_wrong = np.array([labels[row] in YES for row in row_of_pair[embedded.pair_numbers]])
    pairs = embedded.pairs
    if size is not None and size < len(pairs):
        rows = np.sort(np.random.default_rng([seed, 27]).permutation(len(pairs))[:size])
        pairs, is_wrong = only_used_images(pairs, rows), is_wrong[rows]
    return NoisyPairs(pairs, is_wrong)


def _encode_once(encode: Callable[[Sequence[str]], np.ndarray], folder: Path, texts: Sequence[str]) -> np.ndarray:
    """The vectors of these texts, from a file if they were encoded before."""
    file = folder / f"{digest(list(texts))}.npy"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        vectors = encode(texts)
        atomic_write(file, lambda partial_file: np.save(partial_file, vectors))
    return np.load(file, allow_pickle=False)


def _all_rows(source: Any) -> np.ndarray:
    return source.rows(np.arange(len(source))).values
