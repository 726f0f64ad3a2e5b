"""Pixels as a feature source: decoded for each batch, or once into a cache of resized uint8 images.

Before training every image is decoded once. That finds the images that cannot be read, whose pairs are left out, and
fills the cache. So the batches of a run are the same with a cache and without one, and after an interruption.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from sremkit.data.decoder import Decoder
from sremkit.data.features import Allocate, ArrayFeatures, MappedFeatures
from sremkit.data.image_transform import ImageTransform
from sremkit.data.images import image_state, only_used_images
from sremkit.data.pairs import FeatureRows, ImageSource, Pairs
from sremkit.errors import DataError, UserNotice
from sremkit.io import digest, read_json_or_empty, reserve, try_lock, write_json
from sremkit.version import __version__
from sremkit.worker_processes import usable_cores

AUTO, OFF = "auto", "off"
MEMORY_BYTES = 256 << 20  # pixels up to this size are kept in memory, in place of a file
SAVE_SECONDS = 5.0  # work that may be lost when the process is killed
MIN_IMAGES_PER_WORKER = 64
MAX_WORKERS = 16
PIXELS, PROGRESS, COMPLETE, LOCK = "pixels.npy", "progress.json", "complete.json", "lock"

Progress = Callable[[int, int], None]  # images done, images in all


class UnreadableImagesWarning(UserNotice):
    """Images that could not be decoded, whose pairs are left out."""


class PixelFeatures:
    """Pixels of images by row; a subclass reads them as uint8.

    Args:
        problems: why images cannot be read, by row; their pixels are those of no image.
    """

    def __init__(self, transform: ImageTransform, problems: dict[int, str]) -> None:
        self.transform, self.problems = transform, problems
        #: (3, 1, 1) each: float32 pixels are `scale` times the stored ones plus `shift`.
        self.scale, self.shift = transform.scale, transform.shift

    @property
    def dim(self) -> int:
        return int(np.prod(self.transform.shape))

    def __len__(self) -> int:
        raise NotImplementedError

    def read(self, rows: np.ndarray, allocate: Allocate) -> np.ndarray:
        """The stored pixels (k, 3, h, w) uint8, in memory from `allocate`."""
        raise NotImplementedError

    def rows(self, indices: np.ndarray) -> FeatureRows:
        """Normalised pixels (k, 3, h, w) float32."""
        stored = self.read(np.asarray(indices, dtype=np.int64), np.empty)
        return FeatureRows(self.transform.normalize(torch.from_numpy(stored)).numpy(), None)

    def raw_rows(self, indices: np.ndarray, allocate: Allocate) -> FeatureRows:
        """Stored pixels, which a device normalises."""
        return FeatureRows(self.read(np.asarray(indices, dtype=np.int64), allocate), None)


class DecodedPixels(PixelFeatures):
    """Images decoded for each batch."""

    def __init__(self, decoder: Decoder, problems: dict[int, str]) -> None:
        super().__init__(decoder.transform, problems)
        self.decoder = decoder

    def __len__(self) -> int:
        return len(self.decoder.images)

    def read(self, rows: np.ndarray, allocate: Allocate) -> np.ndarray:
        decoded = self.decoder.decode(rows, allocate((len(rows), *self.transform.shape), np.dtype(np.uint8)))
        for row, problem in decoded.problems.items():
            if row not in self.problems:
                raise DataError(f"{problem}; it could be read when the run began")
        return decoded.pixels


class CachedPixels(PixelFeatures):
    """Resized images, in memory or in a memory-mapped file; (n, 3·h·w) uint8."""

    def __init__(self, stored: ArrayFeatures, transform: ImageTransform, problems: dict[int, str]) -> None:
        super().__init__(transform, problems)
        self.stored = stored

    def __len__(self) -> int:
        return len(self.stored)

    def read(self, rows: np.ndarray, allocate: Allocate) -> np.ndarray:
        found = self.stored.raw_rows(rows, allocate)
        assert found is not None  # uint8 is supported
        return found.values.reshape(len(rows), *self.transform.shape)


@dataclass(frozen=True)
class PixelReading:
    """How pixels are read.

    Args:
        cache: "auto": in memory if they are few, else in a file below `cache_root()` if the disk has room; "off":
            decode for each batch; otherwise the folder of the file.
        workers: processes that decode; by default one per core.
        progress: called while the images are decoded before training.
    """

    cache: str = AUTO
    workers: int | None = None
    progress: Progress | None = None

    def open(self, images: ImageSource, transform: ImageTransform) -> PixelFeatures:
        """Decode all images once, and keep what the cache keeps."""
        size = len(images) * int(np.prod(transform.shape))
        if self.cache == AUTO and size <= MEMORY_BYTES:
            return self._in_memory(images, transform)
        if self.cache == AUTO and not _has_room(cache_root(), size):
            warnings.warn(
                f"the resized images would take {size / 1e9:.1f} GB of {cache_root()}, more than half of what is free, "
                "so they are decoded in every epoch; data.pixel_cache names another folder",
                UserNotice,
                stacklevel=2,
            )
            return self._decoded(images, transform)
        if self.cache == OFF:
            return self._decoded(images, transform)
        root = cache_root() if self.cache == AUTO else Path(self.cache).expanduser()
        return self._in_file(images, transform, root / cache_key(images, transform))

    def _decoder(self, images: ImageSource, transform: ImageTransform) -> Decoder:
        workers = self.workers
        if workers is None:
            workers = min(usable_cores(), MAX_WORKERS, len(images) // MIN_IMAGES_PER_WORKER)
        return Decoder(images, transform, workers=workers)

    def _report(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(done, total)

    def _in_memory(self, images: ImageSource, transform: ImageTransform) -> CachedPixels:
        array = np.empty((len(images), int(np.prod(transform.shape))), dtype=np.uint8)
        problems = self._fill(array, images, transform)
        return CachedPixels(ArrayFeatures(array, name="pixels"), transform, problems)

    def _decoded(self, images: ImageSource, transform: ImageTransform) -> DecodedPixels:
        decoder = self._decoder(images, transform)
        problems: dict[int, str] = {}
        self._report(0, len(images))
        for part in decoder.stream():
            problems |= part.problems
            self._report(int(part.rows[-1]) + 1, len(images))
        return DecodedPixels(decoder, problems)

    def _in_file(self, images: ImageSource, transform: ImageTransform, folder: Path) -> CachedPixels:
        """Pixels of a folder, which is filled first; other processes wait meanwhile."""
        shape = (len(images), int(np.prod(transform.shape)))
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK).open("a") as lock:
            while (found := _read_state(folder, COMPLETE, shape)) is None and not try_lock(lock):
                time.sleep(0.2)
            if found is None:
                self._fill_file(images, transform, folder, shape)
                found = _read_state(folder, COMPLETE, shape)
        if found is None or found.done != len(images):
            raise DataError(f"the resized images in {folder} were removed while they were written; start again")
        return CachedPixels(MappedFeatures(folder / PIXELS), transform, found.problems)

    def _fill_file(self, images: ImageSource, transform: ImageTransform, folder: Path, shape: tuple[int, int]) -> None:
        """Fill the file from where a killed process stopped; one that is damaged is made again."""
        file, begun = folder / PIXELS, _read_state(folder, PROGRESS, shape)
        (folder / COMPLETE).unlink(missing_ok=True)
        if begun is None:
            file.unlink(missing_ok=True)
            array = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=shape)
            reserve(file)
            begun = _State(0, {})
        else:
            array = np.lib.format.open_memmap(file, mode="r+")

        def save(done: int, found: dict[int, str]) -> None:
            array.flush()
            write_json(folder / PROGRESS, {"done": done, "problems": {str(row): p for row, p in found.items()}})

        problems = self._fill(array, images, transform, start=begun.done, problems=begun.problems, save=save)
        array.flush()
        stored = {str(row): problem for row, problem in problems.items()}
        write_json(folder / COMPLETE, {"done": len(images), "problems": stored})
        (folder / PROGRESS).unlink(missing_ok=True)

    def _fill(
        self,
        array: np.ndarray,
        images: ImageSource,
        transform: ImageTransform,
        *,
        start: int = 0,
        problems: dict[int, str] | None = None,
        save: Callable[[int, dict[int, str]], None] | None = None,
    ) -> dict[int, str]:
        """Decode the images from row `start` on into the rows of `array`; returns the problems of all."""
        found = dict(problems or {})
        decoder, saved = self._decoder(images, transform), time.monotonic()
        self._report(start, len(images))
        try:
            for part in decoder.stream(start):
                done = int(part.rows[-1]) + 1
                array[part.rows[0] : done] = part.pixels.reshape(len(part.rows), -1)
                found |= part.problems
                self._report(done, len(images))
                if save is not None and time.monotonic() - saved > SAVE_SECONDS:
                    save(done, found)
                    saved = time.monotonic()
        finally:
            decoder.close()
        return found


class _State(NamedTuple):
    """How far the file of resized images is filled."""

    done: int
    problems: dict[int, str]


def _read_state(folder: Path, name: str, shape: tuple[int, int]) -> _State | None:
    """The stored state of a file of this shape; None where there is none, or where it is damaged."""
    stored = read_json_or_empty(folder / name)
    try:
        array = np.lib.format.open_memmap(folder / PIXELS, mode="r")
        found = _State(stored["done"], {int(row): str(problem) for row, problem in stored["problems"].items()})
    except (OSError, ValueError, EOFError, KeyError, AttributeError):
        return None
    is_sound = (
        isinstance(found.done, int) and 0 <= found.done <= shape[0] and all(0 <= k < shape[0] for k in found.problems)
    )
    return found if is_sound and array.shape == shape and array.dtype == np.uint8 else None


def cache_root() -> Path:
    """Where resized images are kept: $SREMKIT_CACHE, or the user's cache folder."""
    if "SREMKIT_CACHE" in os.environ:
        return Path(os.environ["SREMKIT_CACHE"]) / "pixels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sremkit" / "pixels"


def cache_key(images: ImageSource, transform: ImageTransform) -> str:
    """Equal for equal images, in the same order and of the same dates, that are resized in the same way."""
    resizing = [transform.height, transform.width, transform.shortest_edge, transform.resample]
    states = [[images.name(k), image_state(images, k)] for k in range(len(images))]
    return digest([__version__, resizing, states])


def with_pixels(pairs: Pairs, transform: ImageTransform, reading: PixelReading | None = None) -> Pairs:
    """The pairs with pixels in place of image features; unreadable images are reported."""
    if pairs.images is None:
        raise DataError(
            f"{pairs.name} ({pairs.split}) has no images that could be opened, and this model reads pixels; give the "
            "folder of the images, such as data.options.image_root=DIR, or a model on features"
        )
    pixels = (reading or PixelReading()).open(pairs.images, transform)
    if pixels.problems:
        first = next(iter(pixels.problems.values()))
        count = np.isin(pairs.image_of_text, list(pixels.problems)).sum()
        warnings.warn(
            f"{len(pixels.problems):,} of {len(pixels):,} images of {pairs.name} ({pairs.split}) cannot be read, so "
            f"{count:,} pairs are left out; the first: {first}",
            UnreadableImagesWarning,
            stacklevel=2,
        )
        if len(pixels.problems) == len(pixels):
            raise DataError(f"none of the {len(pixels):,} images of {pairs.name} can be read; the first: {first}")
    return replace(pairs, image_features=pixels)


def has_pixels(pairs: Pairs) -> np.ndarray:
    """(m,) bool: the pairs whose image can be read."""
    pixels = pairs.image_features
    problems = list(pixels.problems) if isinstance(pixels, PixelFeatures) else []
    return ~np.isin(pairs.image_of_text, problems)


def readable_pairs(pairs: Pairs) -> Pairs:
    """Without pairs whose image cannot be read, and without those images."""
    readable = has_pixels(pairs)
    return pairs if readable.all() else only_used_images(pairs, np.flatnonzero(readable))


def _has_room(folder: Path, size: int) -> bool:
    while not folder.exists():
        folder = folder.parent
    return size <= shutil.disk_usage(folder).free / 2
