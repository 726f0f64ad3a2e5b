"""Generated collections of the paper's sizes, in the field's layout: `{split}_ims.npy`, `{split}_caps.txt`.

Each image shows a few concepts out of some thousands. Concepts have Zipf frequencies and co-occur by topic. A
region is the vector of one of the image's concepts, or of none, plus noise, rectified as detector features are:

    region = relu(strength * prototype[concept] + noise),    concept ~ Categorical(salience of the image's concepts)

A caption names some of the image's concepts, the salient ones more often, each by one of its synonyms, among function
words and rare words that describe nothing. These are not real data: they test whether training runs, and runs fast, at
full size. The folder holds `generated.json`, which says so, and readers name the collection by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.errors import UserError
from sremkit.io import atomic_write

MANIFEST = "generated.json"
CHUNK_IMAGES = 256
BACKGROUND = -1  # a region that shows none of the concepts

OPENERS = ("", "", "there is", "a photo of", "this shows", "here we see")
RELATIONS = ("on", "near", "with", "next to", "in front of", "behind", "under", "and")
ARTICLES = ("a", "the", "some", "one")
CLOSERS = ("", "", "outside", "in the background", "during the day", "at night")
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Collection:
    """Sizes and statistics of a generated collection.

    Args:
        splits: number of images of each split.
        zipf: exponent of the concept frequencies; 0 makes all concepts equally frequent.
        wrong_rate: fraction of the training captions that describe another image, for collections whose
            noise is natural. `train_wrong.npy` says which; nothing but an evaluation may read it.
    """

    like: str
    splits: dict[str, int]
    captions_per_image: int = 5
    num_regions: int = 36
    dim: int = 2048
    num_concepts: int = 2000
    num_topics: int = 40
    num_rare_words: int = 4000
    zipf: float = 1.0
    strength: float = 0.5
    wrong_rate: float = 0.0
    dtype: str = "float32"
    seed: int = 0


COLLECTIONS = {
    "f30k": Collection("f30k", {"train": 29_000, "dev": 1_014, "test": 1_000}),
    "coco": Collection("coco", {"train": 113_287, "dev": 5_000, "testall": 5_000}, num_concepts=2500),
    "cc152k": Collection(
        "cc152k",
        {"train": 150_000, "dev": 1_000, "test": 1_000},
        captions_per_image=1,
        num_concepts=4000,
        wrong_rate=0.2,
    ),
}


def collection_like(name: str, *, images: int | None = None, **changes: Any) -> Collection:
    """The collection of this name with some values changed.

    Args:
        images: number of training images; the other splits shrink with it, to a tenth of it at most.
    """
    if name not in COLLECTIONS:
        raise UserError(f"there is no collection '{name}' to imitate; choose from: {', '.join(COLLECTIONS)}")
    known = COLLECTIONS[name]
    if images is not None:
        others = {split: min(size, max(1, images // 10)) for split, size in known.splits.items()}
        known = replace(known, splits={**others, "train": images})
    return replace(known, **{key: value for key, value in changes.items() if value is not None})


def write_collection(collection: Collection, folder: Path, progress: Progress = lambda *_: None) -> None:
    """Write all splits. Complete splits of an interrupted call are kept; another collection's folder is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / MANIFEST
    facts = json.dumps({"generated": "not real data", **asdict(collection)}, indent=2) + "\n"
    if not manifest.exists():
        if any(folder.iterdir()):
            raise UserError(f"{folder} holds other files; name a new folder for the generated collection")
        atomic_write(manifest, facts)
    elif manifest.read_text(encoding="utf-8") != facts:
        raise UserError(f"{folder} holds a collection with other settings ({MANIFEST}); name a new folder")
    model = _ConceptModel(collection)
    for number, split in enumerate(collection.splits):
        if not (folder / f"{split}_caps.txt").exists():  # written last
            _write_split(model, folder, split, number, progress)


def _write_split(model: _ConceptModel, folder: Path, split: str, number: int, progress: Progress) -> None:
    collection, num_images = model.collection, model.collection.splits[split]
    starts = range(0, num_images, CHUNK_IMAGES)
    captions: list[str] = []
    features = folder / f"{split}_ims.npy"
    partial = features.with_suffix(".partial")
    shape = (num_images, collection.num_regions, collection.dim)
    progress(f"{split} images", 0, num_images)
    with open(partial, "wb") as file:
        header = {"descr": np.dtype(collection.dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        chunks = _in_order(lambda first: model.chunk(number, first, min(CHUNK_IMAGES, num_images - first)), starts)
        for first, (regions, texts) in zip(starts, chunks, strict=True):
            file.write(regions.tobytes())
            captions += texts
            progress(f"{split} images", min(first + CHUNK_IMAGES, num_images), num_images)
    partial.replace(features)
    if split == "train" and collection.wrong_rate > 0:
        wrong = _move_some(captions, collection.wrong_rate, np.random.default_rng([collection.seed, 99]))
        np.save(folder / "train_wrong.npy", wrong)
    atomic_write(folder / f"{split}_caps.txt", "\n".join(captions) + "\n")


def _in_order(make: Callable[[int], Any], items: range, ahead: int = 4) -> Iterator[Any]:
    """Results of `make` in the order of the items; a few are computed ahead by threads."""
    with ThreadPoolExecutor(max_workers=ahead) as pool:
        waiting = iter(items)
        futures = [pool.submit(make, item) for item in islice(waiting, 2 * ahead)]
        while futures:
            yield futures.pop(0).result()
            futures += [pool.submit(make, item) for item in islice(waiting, 1)]


def _move_some(captions: list[str], rate: float, rng: np.random.Generator) -> np.ndarray:
    """Exchange a fraction of the captions among each other, in place; (m,) bool says which changed."""
    moved = rng.permutation(len(captions))[: round(rate * len(captions))]
    texts = [captions[k] for k in np.roll(moved, 1)]
    wrong = np.zeros(len(captions), dtype=bool)
    for k, text in zip(moved, texts, strict=True):
        wrong[k], captions[k] = text != captions[k], text
    return wrong


class _ConceptModel:
    """What all images of a collection share: prototypes, frequencies, topics, words."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        rng = np.random.default_rng([collection.seed, 0])
        concepts = collection.num_concepts
        self.prototypes = rng.standard_normal((concepts, collection.dim), dtype=np.float32)
        self.log_frequency = -collection.zipf * np.log(np.arange(concepts) + 2.0)
        self.topic_of_concept = rng.integers(collection.num_topics, size=concepts)
        num_synonyms = rng.choice([1, 2, 3], size=concepts, p=[0.6, 0.3, 0.1])
        numbers = iter(rng.permutation(int(num_synonyms.sum()) + collection.num_rare_words).tolist())
        self.synonyms = [[_word(next(numbers)) for _ in range(count)] for count in num_synonyms]
        self.rare_words = [_word(number) for number in numbers]

    def chunk(self, split: int, first: int, count: int) -> tuple[np.ndarray, list[str]]:
        """Regions (count, r, d) and captions of some images; a function of seed, split and first image."""
        collection = self.collection
        rng = np.random.default_rng([collection.seed, 1, split, first])
        topics = rng.integers(collection.num_topics, size=count)
        logits = self.log_frequency + 3.0 * (self.topic_of_concept == topics[:, None])
        # The Gumbel trick: the k largest perturbed logits are k draws without replacement.
        order = np.argsort(-(logits + rng.gumbel(size=logits.shape)), axis=1)
        shape = (count, collection.num_regions, collection.dim)
        regions = rng.standard_normal(shape, dtype=np.float32)
        captions: list[str] = []
        for image in range(count):
            shown = order[image, : rng.integers(4, 9)]
            salience = rng.dirichlet(np.full(len(shown), 2.0))
            choices = np.append(shown, BACKGROUND)
            of_region = rng.choice(choices, size=collection.num_regions, p=np.append(0.75 * salience, 0.25))
            visible = of_region != BACKGROUND
            regions[image, visible] += collection.strength * self.prototypes[of_region[visible]]
            captions += [self._caption(shown, salience, rng) for _ in range(collection.captions_per_image)]
        np.maximum(regions, 0, out=regions)
        return regions.astype(collection.dtype, copy=False), captions

    def _caption(self, shown: np.ndarray, salience: np.ndarray, rng: np.random.Generator) -> str:
        named = rng.choice(shown, size=min(len(shown), int(rng.integers(2, 5))), replace=False, p=salience)
        words = [OPENERS[rng.integers(len(OPENERS))]]
        for position, concept in enumerate(named):
            if position:
                words.append(RELATIONS[rng.integers(len(RELATIONS))])
            words.append(ARTICLES[rng.integers(len(ARTICLES))])
            if rng.random() < 0.1:
                words.append(self.rare_words[rng.integers(len(self.rare_words))])
            synonyms = self.synonyms[concept]
            # The first synonym is the usual word.
            words.append(synonyms[0] if rng.random() < 0.7 else synonyms[rng.integers(len(synonyms))])
        words.append(CLOSERS[rng.integers(len(CLOSERS))])
        return " ".join(word for word in words if word)


def _word(number: int) -> str:
    """A pronounceable word for each number: syllables as digits, at least two of them."""
    syllables = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]
    digits = [number % len(syllables)]
    while number >= len(syllables) or len(digits) < 2:
        number //= len(syllables)
        digits.append(number % len(syllables))
    return "".join(syllables[digit] for digit in reversed(digits))
