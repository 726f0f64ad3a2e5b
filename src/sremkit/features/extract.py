"""Extraction of features of a whole collection into a folder that training reads.

Rows are encoded in chunks by worker processes, or copied from other extractions, and stored in order.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from sremkit.data.formats import Collection
from sremkit.data.formats.features import IMAGE_ARRAYS, IMAGE_FILES, IMAGES, PAIRS, SKIPPED, TEXT_ARRAYS, image_problems
from sremkit.data.images import JoinedImages, image_place
from sremkit.data.pairs import ImageSource, Pairs
from sremkit.errors import DataError, UserError
from sremkit.features.encoders import ImageEncoder, TextEncoder
from sremkit.features.encoders.efficientnet import EfficientNetEncoder
from sremkit.features.encoders.minilm import MiniLMEncoder
from sremkit.features.store import DTYPE, ArraySpec, CachedRows, ContentHashes, FeatureStore, find_cached
from sremkit.worker_processes import init_worker, one_thread, usable_cores

KINDS = (*IMAGE_ARRAYS, *TEXT_ARRAYS)
TEXTS_PER_CHUNK = 256  # fixed, because the last bits of a vector depend on the other texts of its batch

Progress = Callable[[str, int, int, int], None]  # "images" or "texts", rows done, all rows, problems


@dataclass(frozen=True)
class Extraction:
    """The result of an extraction."""

    folder: Path
    num_images: int
    problems: dict[str, str]  # by image id: why it could not be read
    was_complete: bool  # before this call
    work: dict[str, Work]  # of this call, by "images" and "texts"


@dataclass(frozen=True)
class Work:
    """What one call computed for one group of rows."""

    encoded: int
    reused: int  # from other extractions
    seconds: float


def extract_features(
    collection: Collection,
    out: str | Path,
    *,
    features: Sequence[str] = ("pooled", "sentences"),
    workers: int | None = None,
    batch_size: int = 32,
    progress: Progress | None = None,
    image_encoder: ImageEncoder | None = None,
    text_encoder: TextEncoder | None = None,
    contents: ContentHashes | None = None,
    save_seconds: float = 5.0,
) -> Extraction:
    """Extract features into the folder `out`, or resume an interrupted extraction.

    The result does not depend on `workers`, `batch_size` or interruptions. Unreadable images get rows of NaN, and
    `read_pairs(out)` leaves their pairs out.

    Args:
        features: some of pooled, grid and sentences.
        workers: processes that decode and encode, one thread each; by default one per core. With 0 this process
            does it.
        batch_size: images per task of a worker.
        image_encoder, text_encoder: by default EfficientNet-lite2 and all-MiniLM-L6-v2.
        contents: content hashes of the rows, and folders whose features may be reused. A reused text vector was
            computed in another batch, which can change its last bit.
        save_seconds: work that may be lost when the process is killed.
    """
    out, rows = Path(out), CollectionRows(collection)
    image_encoder = image_encoder or EfficientNetEncoder()
    text_encoder = text_encoder or MiniLMEncoder()
    kinds = _check_kinds(features)
    image_kinds = [kind for kind in kinds if kind in IMAGE_ARRAYS]
    arrays = {
        "pooled": ArraySpec((rows.num_images, image_encoder.dim), image_encoder.description),
        "grid": ArraySpec((rows.num_images, image_encoder.num_regions, image_encoder.dim), image_encoder.description),
        "sentences": ArraySpec((len(rows.texts), text_encoder.dim), text_encoder.description),
    }
    arrays = {kind: arrays[kind] for kind in kinds}
    known = contents or ContentHashes([], [])
    jobs: list[ImageJob | TextJob] = []
    if image_kinds:
        cached = find_cached("images", {kind: arrays[kind] for kind in image_kinds}, known)
        jobs.append(ImageJob(rows.images(), image_encoder, image_kinds, cached, per_chunk=batch_size))
    if "sentences" in kinds:
        cached = find_cached("texts", {"sentences": arrays["sentences"]}, known)
        jobs.append(TextJob(rows.texts, text_encoder, cached))
    work: dict[str, Work] = {}
    with FeatureStore(out, rows.fingerprint(), arrays, save_seconds=save_seconds) as store:
        was_complete = store.complete
        if not was_complete:
            for job in jobs:
                work[job.group] = _run(job, store, usable_cores() if workers is None else workers, progress)
                _check_any_readable(store, rows.num_images)
            tables = {**rows.tables(store.problems), **(contents.tables() if contents else {})}
            store.finish(tables, rows.facts())
    problems = image_problems(out) if was_complete else rows.by_image_id(store.problems)
    return Extraction(out, rows.num_images, problems, was_complete, work)


def _check_kinds(features: Sequence[str]) -> list[str]:
    unknown = [kind for kind in features if kind not in KINDS]
    if unknown or not features:
        problem = f"there are no features called '{unknown[0]}'" if unknown else "no features were requested"
        raise UserError(f"{problem}; choose from: {', '.join(KINDS)}")
    return [kind for kind in KINDS if kind in features]


def _run(job: ImageJob | TextJob, store: FeatureStore, workers: int, progress: Progress | None) -> Work:
    started, start = time.monotonic(), store.done[job.group]
    encoded = num_uncached(job, start)
    num_problems = len(store.problems)
    if progress is not None:
        progress(job.group, start, len(job), num_problems)
    for chunk in encode_chunks(job, start=start, workers=workers):
        store.write(job.group, chunk.start, chunk.arrays, chunk.problems)
        num_problems += len(chunk.problems)
        if progress is not None:
            done = chunk.start + len(next(iter(chunk.arrays.values())))
            progress(job.group, done, len(job), num_problems)
    return Work(encoded, max(len(job) - start, 0) - encoded, time.monotonic() - started)


def _check_any_readable(store: FeatureStore, num_images: int) -> None:
    store.save()
    if len(store.problems) == num_images:
        raise DataError(
            f"none of the {num_images} images could be read, the first because: {store.problems[0]}. "
            f"Correct that, remove {store.folder} and extract again"
        )


class Chunk(NamedTuple):
    """Features of consecutive rows."""

    start: int
    arrays: dict[str, np.ndarray]  # by kind: (k, ...) float16, NaN for unreadable images
    problems: dict[int, str]  # by row


@dataclass(eq=False)
class ImageJob(Dataset[Chunk]):
    """Decodes and encodes images; unreadable ones are reported."""

    group: ClassVar[str] = "images"

    images: ImageSource
    encoder: ImageEncoder
    kinds: Sequence[str]
    cached: CachedRows
    per_chunk: int

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: range) -> Chunk:
        shapes = {"pooled": (self.encoder.dim,), "grid": (self.encoder.num_regions, self.encoder.dim)}
        arrays = {kind: np.full((len(rows), *shapes[kind]), np.nan, dtype=DTYPE) for kind in self.kinds}
        problems: dict[int, str] = {}
        for k, row in enumerate(rows):
            if row in self.cached:
                for kind in self.kinds:
                    arrays[kind][k] = self.cached.read(kind, row)
                continue
            try:
                image = self.images.open(row)
            except DataError as problem:
                problems[row] = str(problem)
                continue
            features = self.encoder.encode(image)
            for kind in self.kinds:
                arrays[kind][k] = getattr(features, kind)
        return Chunk(rows.start, arrays, problems)


@dataclass(eq=False)
class TextJob(Dataset[Chunk]):
    """Encodes texts."""

    group: ClassVar[str] = "texts"
    per_chunk: ClassVar[int] = TEXTS_PER_CHUNK

    texts: Sequence[str]
    encoder: TextEncoder
    cached: CachedRows

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: range) -> Chunk:
        vectors = np.empty((len(rows), self.encoder.dim), dtype=DTYPE)
        new = [row for row in rows if row not in self.cached]
        if new:
            encoded = self.encoder.encode([self.texts[row] for row in new])
            vectors[np.array(new) - rows.start] = encoded.astype(DTYPE)
        for k, row in enumerate(rows):
            if row in self.cached:
                vectors[k] = self.cached.read("sentences", row)
        return Chunk(rows.start, {"sentences": vectors}, {})


def encode_chunks(job: ImageJob | TextJob, *, start: int, workers: int) -> Iterator[Chunk]:
    """Encode all rows from `start` on, in order; every chunk is computed by one thread."""
    if start >= len(job):
        return
    if num_uncached(job, start) > 0:
        job.encoder.load()  # once, before the workers are forked
    ranges = [range(k, min(k + job.per_chunk, len(job))) for k in range(start, len(job), job.per_chunk)]
    # A DataLoader returns results in order, a few chunks ahead, and re-raises errors.
    loader = DataLoader(
        job,
        sampler=ranges,
        batch_size=None,
        num_workers=workers,
        collate_fn=_identity,
        worker_init_fn=init_worker,
        generator=torch.Generator(),  # else the loader would advance the global generator
    )
    with one_thread():
        yield from loader


def num_uncached(job: ImageJob | TextJob, start: int) -> int:
    """Number of rows from `start` on that have to be encoded."""
    return max(len(job) - start, 0) - job.cached.count(start)


def _identity(chunk: Any) -> Any:
    return chunk


class CollectionRows:
    """The images and the texts of all splits, numbered consecutively as the rows of the arrays."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.splits: list[Pairs] = list(collection.pairs.values())
        self.num_images = sum(pairs.num_images for pairs in self.splits)
        self.texts = [text for pairs in self.splits for text in pairs.texts]

    def images(self) -> JoinedImages:
        sources = []
        for pairs in self.splits:
            if pairs.images is None:
                raise DataError(
                    f"{pairs.name} ({pairs.split}) has no images, only texts or features; "
                    "give the folder of the images, or extract sentences only"
                )
            sources.append(pairs.images)
        return JoinedImages(sources)

    def fingerprint(self) -> str:
        """A hash of all ids and texts in order; images enter by id, not by content."""
        digest = hashlib.sha256()
        for line in (*self._image_lines({}), *self._pair_lines()):
            digest.update(line.encode())
        return digest.hexdigest()[:16]

    def by_image_id(self, problems: Mapping[int, str]) -> dict[str, str]:
        """Problems of image rows, by the images' ids."""
        return {image_id: problems[row] for row, _, image_id in self._images() if row in problems}

    def tables(self, problems: Mapping[int, str]) -> dict[str, Iterator[str]]:
        """Lines of the tables next to the arrays; `problems` explains unreadable images."""
        images, skipped = self._image_lines(problems), self._skipped_lines(problems)
        return {IMAGES: images, IMAGE_FILES: self._file_lines(), PAIRS: self._pair_lines(), SKIPPED: skipped}

    def facts(self) -> dict[str, Any]:
        """The manifest's entries about the pairs."""
        splits = {
            name: {"images": pairs.num_images, "texts": len(pairs), "left_out": dict(pairs.skipped.reasons)}
            for name, pairs in self.collection.pairs.items()
        }
        return {"name": self.splits[0].name, "has_splits": self.collection.has_splits, "splits": splits}

    def _image_lines(self, problems: Mapping[int, str]) -> Iterator[str]:
        for row, split, image_id in self._images():
            problem = {"problem": problems[row]} if row in problems else {}
            yield json.dumps({"id": image_id, "split": split, **problem}) + "\n"

    def _file_lines(self) -> Iterator[str]:
        for pairs in self.splits:
            for number in range(pairs.num_images):
                place = None if pairs.images is None else image_place(pairs.images, number)
                yield json.dumps(None if place is None else [os.path.abspath(place[0]), *place[1:]]) + "\n"

    def _pair_lines(self) -> Iterator[str]:
        first = 0
        for split, pairs in self.collection.pairs.items():
            for k, pair_id in enumerate(pairs.pair_ids):
                image = first + int(pairs.image_of_text[k])
                entry = {"id": pair_id, "split": split, "image": image, "text": pairs.texts[k]}
                yield json.dumps(entry) + "\n"
            first += pairs.num_images

    def _skipped_lines(self, problems: Mapping[int, str]) -> Iterator[str]:
        yield "row\timage\tsplit\tproblem\n"
        for row, split, image_id in self._images():
            if row in problems:
                cells = (str(row), image_id, split, problems[row])
                yield "\t".join(" ".join(cell.split()) for cell in cells) + "\n"

    def _images(self) -> Iterator[tuple[int, str, str]]:
        row = 0
        for split, pairs in self.collection.pairs.items():
            for image_id in pairs.image_ids:
                yield row, split, image_id
                row += 1
