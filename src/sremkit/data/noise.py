"""Injected mismatches and the published index files of them.

Two published protocols share the name "noise rate" and are not comparable. Per caption: the images of some captions are
permuted among these captions. Per image: some images are permuted, and all captions of an image move together. A
permutation can leave a pair unchanged, so the realised rate is slightly below the requested one.

Four more protocols are not permutations (`sremkit.data.mismatches`): "absent", "near", "shared-word" and "one-word".

Training receives only the pairs of `sremkit.data.training_pairs.with_noise`; `is_noisy` is for evaluation.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from sremkit.config.recipes import NoiseProtocol
from sremkit.data import mismatches
from sremkit.data.features import open_npy
from sremkit.data.pairs import MISSING
from sremkit.errors import DataError
from sremkit.io import atomic_write, digest

FileFormat = Literal["caption", "image"]
MAX_IMAGES = 1_000_000_000
PROTOCOLS: tuple[NoiseProtocol, ...] = get_args(NoiseProtocol)
_KNOWN = ", ".join(f"'{name}'" for name in (*PROTOCOLS[2:], "caption"))
FILE_FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)


@dataclass(frozen=True, eq=False)
class Noise:
    """A partly wrong pairing and its truth."""

    image_of_text: np.ndarray  # (m,) int64: the image each text is paired with; MISSING where the text is left out
    is_noisy: np.ndarray  # (m,) bool: whether that is not its own image, or the text was changed
    protocol: NoiseProtocol
    image_of_image: np.ndarray | None = None  # (n,) int64, per image only: new image of the captions of image k
    seed: int | None = None  # None if read from a file
    texts: Sequence[str] | None = None  # (m,) if captions were changed

    @property
    def is_used(self) -> np.ndarray:
        """(m,) bool: whether the text is trained on; all are, except by the protocol "absent"."""
        used: np.ndarray = self.image_of_text != MISSING
        return used

    @property
    def rate(self) -> float:
        """The realised fraction of wrong pairs."""
        return float(self.is_noisy[self.is_used].mean())

    @property
    def hash(self) -> str:
        """Identifies this pairing, with its changed captions, in results; see `pairing_hash`."""
        pairing = pairing_hash(self.image_of_text)
        return pairing if self.texts is None else digest("\0".join([pairing, *self.texts]).encode())


def pairing_hash(image_of_text: np.ndarray) -> str:
    """The first 16 hex digits of the SHA-256 of the image of each text, as little-endian int64.

    A pairing has the same hash in either file format.
    """
    return digest(np.ascontiguousarray(image_of_text, dtype="<i8").tobytes())


def protocol_label(protocol: str) -> str:
    """How a protocol is named in a sentence: "per caption", "per image", "protocol near"."""
    return f"per {protocol}" if protocol in FILE_FORMATS else f"protocol {protocol}"


def make_noise(
    image_of_text: np.ndarray,
    rate: float = 0.4,
    protocol: NoiseProtocol = "caption",
    seed: int = 0,
    *,
    texts: Sequence[str] | None = None,
    vectors: np.ndarray | None = None,
) -> Noise:
    """Make a fraction of the pairs wrong; the same arguments give the same noise.

    Args:
        image_of_text: (m,) the true image of each text.
        rate: fraction of captions, or of images, that are made wrong.
        texts: (m,) needed by "shared-word" and "one-word".
        vectors: (m, d) sentence vectors, needed by "near".
    """
    truth = _image_numbers(image_of_text)
    if protocol not in PROTOCOLS:
        raise DataError(f"the noise protocol must be {_KNOWN} or 'image', got '{protocol}'")
    if not 0 <= rate <= 1:
        raise DataError(f"the noise rate is a fraction between 0 and 1, got {rate}")
    image_of_image, changed = None, None
    paired = truth
    if protocol == "caption":
        paired = _permute_some(truth, rate, np.random.default_rng(seed))
    elif protocol == "image":
        images = np.unique(truth)
        image_of_image = np.arange(images[-1] + 1)  # images without captions do not move
        image_of_image[images] = _permute_some(images, rate, np.random.default_rng(seed))
        paired = image_of_image[truth]
    elif protocol == "absent":
        paired = mismatches.partner_absent(truth, rate, seed)
    elif protocol == "near":
        paired = mismatches.near(truth, _required_vectors(vectors, len(truth)), rate, seed)
    elif protocol == "shared-word":
        paired = mismatches.shared_word(_required_texts(texts, len(truth), protocol), truth, rate, seed)
    else:
        changed = mismatches.one_word(_required_texts(texts, len(truth), protocol), truth, rate, seed)
    is_noisy = (paired != truth) & (paired != MISSING)
    if changed is not None and texts is not None:
        is_noisy = np.array([new != old for new, old in zip(changed, texts, strict=True)])
    if rate > 0 and protocol in ("near", "shared-word", "one-word") and rate * len(truth) >= 1 and not is_noisy.any():
        raise DataError(
            f"the noise protocol '{protocol}' can make no pair of these data wrong: there is no other image, or no "
            "content word in common; take protocol 'caption'"
        )
    return Noise(paired, is_noisy, protocol, image_of_image, seed=seed, texts=changed)


def _required_texts(texts: Sequence[str] | None, number: int, protocol: str) -> Sequence[str]:
    if texts is None:
        raise DataError(f"the noise protocol '{protocol}' reads the captions; give the pairs, not their number alone")
    if len(texts) != number:
        raise DataError(f"there are {len(texts)} texts for {number} captions")
    return texts


def _required_vectors(vectors: np.ndarray | None, number: int) -> np.ndarray:
    if vectors is None:
        raise DataError(
            "the noise protocol 'near' compares sentence vectors, and these pairs have none; `srem features` extracts "
            "them, and the protocols 'shared-word' and 'absent' do without"
        )
    if len(vectors) != number:
        raise DataError(f"there are {len(vectors)} sentence vectors for {number} captions")
    return vectors


def _permute_some(values: np.ndarray, rate: float, generator: np.random.Generator) -> np.ndarray:
    """A copy in which a fraction of the values, rounded down, is permuted."""
    # The product may be too small by rounding: 0.29 * 100 is 28.999999999999996.
    num_chosen = math.floor(rate * len(values) + 1e-6)
    chosen = generator.permutation(len(values))[:num_chosen]
    permuted = values.copy()
    permuted[chosen] = generator.permutation(values[chosen])
    return permuted


def save_noise(noise: Noise, path: str | Path, *, format: FileFormat | None = None) -> None:
    """Write an index file that the published implementations read.

    The protocol "absent" leaves captions out, for which there is no published format: its file has two rows, the
    numbers of caption and image of the pairs that are left.

    Args:
        format: "caption" stores the image of each caption, "image" the new image of each image's captions; by default
            the protocol. Noise per image can be stored in both, other noise only in the first.
    """
    if noise.texts is not None:
        raise DataError("the protocol 'one-word' changes captions and not the pairing, so there is no index file of it")
    format = ("image" if noise.protocol == "image" else "caption") if format is None else format
    if format not in FILE_FORMATS:
        raise DataError(f"the noise file format must be 'caption' or 'image', got '{format}'")
    index = noise.image_of_text if format == "caption" else noise.image_of_image
    if index is None:
        raise DataError("noise per caption cannot be written per image; save it with format='caption'")
    if not noise.is_used.all():
        used = np.flatnonzero(noise.is_used)
        index = np.stack([used, index[used]])
    content = io.BytesIO()
    np.save(content, index.astype("<i8"), allow_pickle=False)
    atomic_write(Path(path), content.getvalue())


def load_noise(
    path: str | Path, image_of_text: np.ndarray, *, num_images: int | None = None, format: FileFormat | None = None
) -> Noise:
    """Read a published index file of either format, recognised by its length.

    A file per caption in which the captions of every image move together is noise per image. With one caption per
    image the protocols are the same, and the result is called per caption.

    Args:
        image_of_text: (m,) the true image of each text.
        num_images: needed only if the last images have no caption.
        format: needed only if each image has one caption and captions are in another order than images.
    """
    truth, index = _image_numbers(image_of_text), _read_index(path)
    num_images = int(truth.max()) + 1 if num_images is None else num_images
    if index.ndim == 2:
        return _noise_of_pairs(path, index, truth, num_images)
    return _noise_of_index(path, index, truth, num_images, format)


def _noise_of_index(
    path: str | Path, index: np.ndarray, truth: np.ndarray, num_images: int, format: FileFormat | None
) -> Noise:
    format = format or _format_by_length(path, index, truth, num_images)
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
    paired = index if format == "caption" else index[truth]
    image_of_image = index if format == "image" else _moved_together(truth, paired, num_images)
    if len(np.unique(truth)) == len(truth):
        image_of_image = None
    return Noise(paired, paired != truth, "caption" if image_of_image is None else "image", image_of_image)


def _noise_of_pairs(path: str | Path, index: np.ndarray, truth: np.ndarray, num_images: int) -> Noise:
    """Of the file of the protocol "absent"."""
    texts, images = index
    if texts.max() >= len(truth) or images.max() >= num_images or len(np.unique(texts)) != len(texts):
        raise DataError(
            f"{path} names caption {texts.max()} and image {images.max()}, but the data has {len(truth)} captions and "
            f"{num_images} images, or it names a caption twice; is it the index of another dataset or split?"
        )
    paired = np.full(len(truth), MISSING)
    paired[texts] = images
    return Noise(paired, (paired != truth) & (paired != MISSING), "absent")


def _format_by_length(path: str | Path, index: np.ndarray, truth: np.ndarray, num_images: int) -> FileFormat:
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
    if not np.array_equal(truth, np.arange(num_images)):  # else both formats mean the same
        raise DataError(
            f"{path}: there are as many images as captions ({num_images}), so the length does not determine "
            "the format; give format='caption' or format='image'"
        )
    return "caption"


def _moved_together(truth: np.ndarray, paired: np.ndarray, num_images: int) -> np.ndarray | None:
    """The new image of each image's captions if they move together and one to one; else None."""
    image_of_image = np.arange(num_images)
    image_of_image[truth] = paired
    together = np.array_equal(image_of_image[truth], paired) and _is_permutation(image_of_image)
    return image_of_image if together and not np.array_equal(paired, truth) else None


def _is_permutation(index: np.ndarray) -> bool:
    return np.array_equal(np.sort(index), np.arange(len(index)))


@dataclass(frozen=True)
class NoiseSummary:
    """Statistics of an index file; None where the file alone does not determine them."""

    protocol: NoiseProtocol  # of the permutation
    format: FileFormat  # number per caption or per image
    num_images: int  # images that have captions
    num_captions: int | None
    captions_moved: int | None
    images_moved: int  # images that lost at least one caption
    images_all_wrong: int  # images that lost all of them
    images_none_wrong: int
    rate: float  # realised fraction of wrong captions
    hash: str | None  # `pairing_hash` of the image of each caption, as in results
    file_hash: str  # `pairing_hash` of the numbers in the file


def inspect_noise(
    path: str | Path,
    captions_per_image: int | None = None,
    image_of_text: np.ndarray | None = None,
    *,
    format: FileFormat | None = None,
) -> NoiseSummary:
    """Describe an index file, with its data or from the file alone.

    Without data, captions are assumed to be in the order of their images, equally many for each. A permutation is per
    image, and its captions are counted only if `captions_per_image` is given. `format` is as for `load_noise`.
    """
    index = _read_index(path)
    if index.ndim == 2:
        if image_of_text is None:
            raise DataError(f"{path} holds pairs (protocol absent), which only their data explain; give image_of_text")
        truth, format = _image_numbers(image_of_text), "caption"
    elif image_of_text is not None:
        truth = _image_numbers(image_of_text)
        format = format or _format_by_length(path, index, truth, int(truth.max()) + 1)
    else:
        truth, format = _layout_of_file(path, index, captions_per_image)
    has_captions = image_of_text is not None or captions_per_image is not None or format == "caption"
    make = _noise_of_pairs if index.ndim == 2 else partial(_noise_of_index, format=format)
    noise = make(path, index, truth, int(truth.max()) + 1)
    captions = np.bincount(truth)
    lost = noise.is_noisy | ~noise.is_used
    wrong = np.bincount(truth[lost], minlength=len(captions))[captions > 0]
    captions = captions[captions > 0]
    return NoiseSummary(
        protocol=noise.protocol if has_captions else "image",
        format=format,
        num_images=len(captions),
        num_captions=len(truth) if has_captions else None,
        captions_moved=int(noise.is_noisy.sum()) if has_captions else None,
        images_moved=int((wrong > 0).sum()),
        images_all_wrong=int((wrong == captions).sum()),
        images_none_wrong=int((wrong == 0).sum()),
        rate=noise.rate,
        hash=noise.hash if has_captions else None,
        file_hash=pairing_hash(index),
    )


def _layout_of_file(
    path: str | Path, index: np.ndarray, captions_per_image: int | None
) -> tuple[np.ndarray, FileFormat]:
    """The true image of each caption and the format, inferred from the numbers in the file."""
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
    """Read an index file and check that it is a list of image numbers, or of pairs (protocol "absent")."""
    index = open_npy(Path(path), mmap_mode=None, remedy="the noise rate in the name")
    if index.ndim == 2 and len(index) == 2:
        return np.stack([_image_numbers(row, name=str(path)) for row in index])
    return _image_numbers(index, name=str(path))


def _image_numbers(values: np.ndarray, name: str = "image_of_text") -> np.ndarray:
    numbers = np.asarray(values)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise DataError(f"{name} must be one list of whole numbers, got {numbers.dtype} with shape {numbers.shape}")
    if len(numbers) == 0:
        raise DataError(f"{name} is empty: there is no caption")
    if numbers.min() < 0:
        raise DataError(f"{name} holds the image number {numbers.min()}; images are counted from 0")
    if numbers.max() > MAX_IMAGES:
        raise DataError(f"{name} holds the image number {numbers.max()}; {MAX_IMAGES:,} images are the most")
    return numbers.astype(np.int64)
