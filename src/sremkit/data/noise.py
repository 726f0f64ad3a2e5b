"""Wrong pairs made on purpose, and the published files of them.

Two protocols share the name "noise rate" and are not comparable. Per caption: the images of some captions are
permuted among these captions, so that few images lose all of theirs. Per image: some images are permuted, and
all captions of an image move together. A permutation may leave a pair as it was, so the truth is read off the
outcome and the realised rate falls a little short of the requested one.

Training is given `Pairs.paired_as(noise.image_of_text)` and nothing else; `is_noisy` is for evaluation alone.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from sremkit.errors import DataError

Protocol = Literal["caption", "image"]
PROTOCOLS: tuple[Protocol, ...] = ("caption", "image")


@dataclass(frozen=True, eq=False)
class Noise:
    """A pairing that is partly wrong, and the truth about it."""

    image_of_text: np.ndarray  # (m,) int64: the image each text is given with
    is_noisy: np.ndarray  # (m,) bool: whether that image is another than its own
    protocol: Protocol
    image_of_image: np.ndarray | None = None  # (n,) int64, per image only: where the captions of image k went
    requested_rate: float | None = None  # None when the noise was read from a file
    seed: int | None = None

    @property
    def rate(self) -> float:
        """The realised share of wrong pairs."""
        return float(self.is_noisy.mean())

    @property
    def hash(self) -> str:
        """Names this pairing in results: see `pairing_hash`."""
        return pairing_hash(self.image_of_text)


def pairing_hash(image_of_text: np.ndarray) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the numbers as little-endian int64.

    It is taken of the image of each text, so that one pairing has one hash in either file format.
    """
    return hashlib.sha256(np.ascontiguousarray(image_of_text, dtype="<i8").tobytes()).hexdigest()[:16]


def make_noise(
    image_of_text: np.ndarray, rate: float = 0.4, protocol: Protocol = "caption", seed: int = 0
) -> Noise:
    """Pair a share of the texts with wrong images; the same arguments give the same noise.

    Args:
        image_of_text: (m,) the true image of each text; left untouched.
        rate: the share of captions, or of images, that take part in the permutation.
    """
    truth = _image_numbers(image_of_text)
    if protocol not in PROTOCOLS:
        raise DataError(f"the noise protocol must be 'caption' or 'image', got '{protocol}'")
    if not 0 <= rate <= 1:
        raise DataError(f"the noise rate is a share between 0 and 1, got {rate}")
    generator = np.random.default_rng(seed)
    if protocol == "caption":
        given, image_of_image = _permute_some(truth, rate, generator), None
    else:
        images = np.unique(truth)
        image_of_image = np.arange(images[-1] + 1)  # an image without captions stays where it is
        image_of_image[images] = _permute_some(images, rate, generator)
        given = image_of_image[truth]
    return Noise(
        image_of_text=given,
        is_noisy=given != truth,
        protocol=protocol,
        image_of_image=image_of_image,
        requested_rate=float(rate),
        seed=seed,
    )


def _permute_some(values: np.ndarray, rate: float, generator: np.random.Generator) -> np.ndarray:
    """A copy in which a share of the values, rounded down, is permuted among itself."""
    # A little more than the product, because 0.29 * 100 is 28.999999999999996 in floating point.
    num_chosen = math.floor(rate * len(values) + 1e-6)
    chosen = generator.permutation(len(values))[:num_chosen]
    permuted = values.copy()
    permuted[chosen] = generator.permutation(values[chosen])
    return permuted


def save_noise(noise: Noise, path: str | Path, *, format: Protocol | None = None) -> None:
    """Write the noise as an index file that the published codes read too.

    Args:
        format: "caption" holds the image of each caption, "image" where the captions of each image went; the
            protocol's own if not given. Per-image noise fits both, per-caption noise only the first.
    """
    format = noise.protocol if format is None else format
    if format not in PROTOCOLS:
        raise DataError(f"the noise file format must be 'caption' or 'image', got '{format}'")
    index = noise.image_of_text if format == "caption" else noise.image_of_image
    if index is None:
        raise DataError("noise per caption cannot be written per image; save it with format='caption'")
    with Path(path).open("wb") as file:  # an open file, or numpy would add .npy to the name
        np.save(file, index.astype("<i8"), allow_pickle=False)


def load_noise(
    path: str | Path,
    image_of_text: np.ndarray,
    *,
    num_images: int | None = None,
    format: Protocol | None = None,
) -> Noise:
    """Read a published index file of either format, recognised by its length.

    A file per caption in which the captions of every image move together is noise per image. With one caption
    per image the protocols are the same, and it is called per caption.

    Args:
        image_of_text: (m,) the true image of each text.
        num_images: needed only if the last images have no caption.
        format: needed only if each image has one caption and the captions stand in another order.
    """
    truth = _image_numbers(image_of_text)
    index = _read_index(path)
    num_images = int(truth.max()) + 1 if num_images is None else num_images
    if format is None:
        format = _format_by_length(path, index, truth, num_images)
    return _noise_of_index(path, index, truth, num_images, format)


def _noise_of_index(
    path: str | Path, index: np.ndarray, truth: np.ndarray, num_images: int, format: Protocol
) -> Noise:
    expected = len(truth) if format == "caption" else num_images
    if len(index) != expected:
        raise DataError(f"{path} holds {len(index)} numbers, but the data has {expected} {format}s")
    if index.max() >= num_images:
        place = int(np.argmax(index >= num_images))
        raise DataError(
            f"{path} names image {index[place]} at position {place}, but the data has {num_images} images; "
            "is it the index of another dataset or split?"
        )
    if format == "image" and not _is_permutation(index):
        often = int(np.argmax(np.bincount(index)))
        raise DataError(
            f"{path} is read as noise per image and must name each image once, but image {often} is there "
            f"{np.count_nonzero(index == often)} times; the file is damaged or of another dataset"
        )
    given = index if format == "caption" else index[truth]
    image_of_image = index if format == "image" else _moved_together(truth, given, num_images)
    if len(np.unique(truth)) == len(truth):
        image_of_image = None
    return Noise(given, given != truth, "caption" if image_of_image is None else "image", image_of_image)


def _format_by_length(path: str | Path, index: np.ndarray, truth: np.ndarray, num_images: int) -> Protocol:
    num_captions = len(truth)
    if len(index) not in (num_captions, num_images):
        raise DataError(
            f"{path} holds {len(index)} numbers; expected {num_captions} (per caption) or {num_images} "
            "(per image), as many as the data has; is it the index of another dataset or split?"
        )
    if num_captions != num_images:
        return "caption" if len(index) == num_captions else "image"
    if not _is_permutation(index):
        return "caption"
    if not _is_permutation(truth):
        return "image"
    if not np.array_equal(truth, np.arange(num_images)):  # else both readings give the same
        raise DataError(
            f"{path}: there are as many images as captions ({num_images}), so the length does not tell the "
            "format; say format='caption' or format='image'"
        )
    return "caption"


def _moved_together(truth: np.ndarray, given: np.ndarray, num_images: int) -> np.ndarray | None:
    """Where the captions of each image went, if together and one image to one image; else None."""
    image_of_image = np.arange(num_images)
    image_of_image[truth] = given
    together = np.array_equal(image_of_image[truth], given)
    moved = not np.array_equal(given, truth)
    return image_of_image if moved and together and _is_permutation(image_of_image) else None


def _is_permutation(index: np.ndarray) -> bool:
    return np.array_equal(np.sort(index), np.arange(len(index)))


@dataclass(frozen=True)
class NoiseSummary:
    """What an index file does to its pairs. None where the file alone does not tell."""

    protocol: Protocol  # how the captions moved
    format: Protocol  # whether the file has a number for each caption or for each image
    num_images: int  # images that have captions
    num_captions: int | None
    captions_moved: int | None
    images_moved: int  # images that lost at least one caption
    images_all_wrong: int  # images that lost all of them
    images_none_wrong: int
    rate: float  # realised share of wrong captions
    hash: str | None  # `pairing_hash` of the image of each caption, as results name it
    file_hash: str  # `pairing_hash` of the numbers in the file; another one if the format is per image

    @property
    def share_all_wrong(self) -> float:
        return self.images_all_wrong / self.num_images

    @property
    def share_none_wrong(self) -> float:
        return self.images_none_wrong / self.num_images


def inspect_noise(
    path: str | Path,
    captions_per_image: int | None = None,
    image_of_text: np.ndarray | None = None,
    *,
    format: Protocol | None = None,
) -> NoiseSummary:
    """Describe an index file, with the data it belongs to or from the file alone.

    Without data, captions are taken to stand in the order of their images, equally many to each. A file that
    is a permutation is per image; its captions are counted only if `captions_per_image` is given. `format` is
    as for `load_noise`.
    """
    index = _read_index(path)
    if image_of_text is not None:
        truth = _image_numbers(image_of_text)
        format = format or _format_by_length(path, index, truth, int(truth.max()) + 1)
        captions_known = True
    else:
        truth, format = _layout_of_file(path, index, captions_per_image)
        captions_known = format == "caption" or captions_per_image is not None
    noise = _noise_of_index(path, index, truth, int(truth.max()) + 1, format)
    captions = np.bincount(truth)
    wrong = np.bincount(truth[noise.is_noisy], minlength=len(captions))[captions > 0]
    captions = captions[captions > 0]
    return NoiseSummary(
        protocol=noise.protocol if captions_known else "image",
        format=format,
        num_images=len(captions),
        num_captions=len(truth) if captions_known else None,
        captions_moved=int(wrong.sum()) if captions_known else None,
        images_moved=int((wrong > 0).sum()),
        images_all_wrong=int((wrong == captions).sum()),
        images_none_wrong=int((wrong == 0).sum()),
        rate=noise.rate,
        hash=noise.hash if captions_known else None,
        file_hash=pairing_hash(index),
    )


def _layout_of_file(
    path: str | Path, index: np.ndarray, captions_per_image: int | None
) -> tuple[np.ndarray, Protocol]:
    """The true image of each caption and the format, as the numbers in the file suggest them."""
    if captions_per_image is not None and captions_per_image < 1:
        raise DataError(f"captions_per_image must be at least 1, got {captions_per_image}")
    if _is_permutation(index) and captions_per_image != 1:
        return np.repeat(np.arange(len(index)), captions_per_image or 1), "image"
    num_images = int(index.max()) + 1
    if captions_per_image is None and len(index) % num_images == 0:
        return np.repeat(np.arange(num_images), len(index) // num_images), "caption"
    if captions_per_image is not None and len(index) % captions_per_image == 0:
        return np.repeat(np.arange(len(index) // captions_per_image), captions_per_image), "caption"
    each = "equally many" if captions_per_image is None else str(captions_per_image)
    raise DataError(
        f"{path} holds {len(index)} numbers from {index.min()} to {index.max()}: neither a permutation of "
        f"images nor {each} captions for each image; give the data's image_of_text"
    )


def _read_index(path: str | Path) -> np.ndarray:
    """The numbers of an index file, checked to be a list of image numbers."""
    try:
        index = np.load(Path(path), allow_pickle=False)
    except FileNotFoundError as cause:
        raise DataError(f"{path} does not exist; check the folder and the noise rate in the name") from cause
    except (ValueError, EOFError, OSError) as cause:
        raise DataError(f"{path} is not a readable .npy file ({cause}); copy or make it again") from cause
    if not isinstance(index, np.ndarray):
        raise DataError(f"{path} is an archive of arrays; a noise file is one array in the .npy format")
    return _image_numbers(index, name=str(path))


def _image_numbers(values: np.ndarray, name: str = "image_of_text") -> np.ndarray:
    numbers = np.asarray(values)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise DataError(
            f"{name} must be one list of whole numbers, got {numbers.dtype} with shape {numbers.shape}"
        )
    if len(numbers) == 0:
        raise DataError(f"{name} is empty: there is no caption")
    if numbers.min() < 0:
        raise DataError(f"{name} holds the image number {numbers.min()}; images are counted from 0")
    return numbers.astype(np.int64)
