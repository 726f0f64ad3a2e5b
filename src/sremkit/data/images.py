"""Images by number, from files or inside tar archives, decoded on demand; nothing is extracted to disk."""

from __future__ import annotations

import io
import os
import tarfile
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sremkit.data.pairs import ImageSource, Pairs, Problem, Problems, SelectedImages
from sremkit.errors import DataError
from sremkit.extras import require

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff")
# Listed because Pillow would otherwise try every format, and for EPS it starts another program.
_FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")
MAX_PIXELS = 100_000_000  # larger images are refused: a small file can decode to more than the memory holds
#: A white PNG image of one pixel, for the examples of formats.
PNG_PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c63f8ffff3f0005fe02fe0def46b80000000049454e44ae426082"
)
WEB = ("http://", "https://")
IMAGE_ROOT_HINT = "give the folder of the images with --image-root (image_root= in Python)"  # for messages
BLOCK = 512  # bytes; a tar archive is a sequence of blocks, ended by one of zeros


class FileImages:
    """Images in files; item k is `paths[k]`."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.paths = [os.fspath(path) for path in paths]

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        return self.paths[index]

    def open(self, index: int) -> Image:
        return decode_image(self.paths[index], name=self.paths[index])


class ImageFiles:
    """Finds image files by name below a folder. Images on the web are accepted, but cannot be opened.

    Args:
        root: None if there are no images; then every name is accepted.
        required: whether a missing file is a problem; features can replace images.
    """

    def __init__(self, root: str | Path | None, *, required: bool = True) -> None:
        self.root = root
        self.required = required
        self._kinds: dict[str, str] = {}  # of each name: "file", "web" or "missing"

    def find_problem(self, name: str) -> Problem | None:
        """What is wrong with this image, or None."""
        if self.root is None:
            return None
        if name not in self._kinds:
            is_file = os.path.isfile(self._path(name))
            self._kinds[name] = "web" if name.startswith(WEB) else "file" if is_file else "missing"
        if self._kinds[name] == "missing" and self.required:
            return "the image is missing", f"put it at {self._path(name)}, or {IMAGE_ROOT_HINT}"
        return None

    def is_on_web(self, name: str) -> bool:
        """Whether an image that is needed is a web address."""
        return self.root is not None and self.required and name.startswith(WEB)

    @property
    def has_files(self) -> bool:
        """Whether an image that was checked is a file."""
        return "file" in self._kinds.values()

    def source(self, names: Sequence[str]) -> ImageSource | None:
        """The images of these names, which have been checked; None if not all of them are files."""
        if self.root is None:
            return None
        kinds = {self._kinds[name] for name in names}
        if self.required and kinds == {"file", "web"}:
            web = next(name for name in names if self._kinds[name] == "web")
            raise DataError(f"some images are files and others on the web, such as {web}; download those first")
        return FileImages([self._path(name) for name in names]) if kinds == {"file"} else None

    def _path(self, name: str) -> str:
        return os.path.join(self.root or "", name)


class TarMember(NamedTuple):
    """One file inside an archive."""

    tar: str
    name: str
    offset: int
    size: int


class TarImages:
    """Images inside tar archives, read at their offset."""

    def __init__(self, members: Sequence[TarMember]) -> None:
        numbers: dict[str, int] = {}
        self._tar_of_image = np.array([numbers.setdefault(m.tar, len(numbers)) for m in members], dtype=np.int32)
        self._tars = list(numbers)
        self._names = [m.name for m in members]
        self._offsets = np.array([m.offset for m in members], dtype=np.int64)
        self._sizes = np.array([m.size for m in members], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._names)

    def member(self, index: int) -> TarMember:
        """The image's archive, name, offset and size."""
        tar = self._tars[self._tar_of_image[index]]
        return TarMember(tar, self._names[index], int(self._offsets[index]), int(self._sizes[index]))

    def name(self, index: int) -> str:
        member = self.member(index)
        return f"{member.tar}, member {member.name}"

    def open(self, index: int) -> Image:
        member = self.member(index)
        try:
            with open(member.tar, "rb") as tar:
                tar.seek(member.offset)
                data = tar.read(member.size)
        except OSError as cause:
            raise DataError(f"{self.name(index)} cannot be read ({cause}); was the archive moved?") from cause
        if len(data) < member.size:
            raise DataError(f"{self.name(index)}: the archive ends within this image; copy the archive again")
        return decode_image(io.BytesIO(data), name=self.name(index))


class JoinedImages:
    """The images of several sources under consecutive numbers."""

    def __init__(self, sources: list[ImageSource]) -> None:
        self.sources = sources
        self._starts = [0, *accumulate(len(source) for source in sources)]

    def __len__(self) -> int:
        return self._starts[-1]

    def name(self, index: int) -> str:
        source, number = self.place(index)
        return source.name(number)

    def open(self, index: int) -> Image:
        source, number = self.place(index)
        return source.open(number)

    def place(self, index: int) -> tuple[ImageSource, int]:
        """The source of an image and its number there."""
        part = bisect_right(self._starts, index) - 1
        return self.sources[part], index - self._starts[part]


def only_used_images(pairs: Pairs, rows: np.ndarray) -> Pairs:
    """Select pairs, and of the images only those they use, renumbered."""
    selected = pairs.select(rows)
    return selected.select_images(np.unique(selected.image_of_text))


def image_state(images: ImageSource, number: int) -> list[int | str] | None:
    """Return size and date of an image, which change with its content; None where they are unknown."""
    if isinstance(images, SelectedImages):
        return image_state(images.source, int(images.selected[number]))
    if isinstance(images, JoinedImages):
        return image_state(*images.place(number))
    if hasattr(images, "digest"):  # of images in memory
        return [images.digest(number)]
    place = image_place(images, number)
    if place is None:
        return None
    try:
        state = os.stat(place[0])
    except OSError:
        return ["missing", *place[1:]]
    return [state.st_size, state.st_mtime_ns, *place[1:]]


def image_place(images: ImageSource, number: int) -> tuple[str, *tuple[int, ...]] | None:
    """The file of an image, below selections and joins; of an archive followed by offset and size."""
    if isinstance(images, JoinedImages):
        return image_place(*images.place(number))
    if isinstance(images, SelectedImages):
        return image_place(images.source, int(images.selected[number]))
    if isinstance(images, TarImages):
        member = images.member(number)
        return member.tar, member.offset, member.size
    return (images.paths[number],) if isinstance(images, FileImages) else None


def decode_image(source: str | io.BytesIO, *, name: str) -> Image:
    """Decode an image to RGB: EXIF orientation applied, transparency over white.

    A missing, damaged or too large image raises `DataError` with its name.
    """
    image_module = require("PIL.Image", extra="data", purpose="read images")
    unidentified = require("PIL", extra="data", purpose="read images").UnidentifiedImageError
    too_large = DataError(
        f"{name}: the image has more than {MAX_PIXELS:,} pixels; make it smaller, or raise "
        "sremkit.data.images.MAX_PIXELS"
    )
    try:
        # Pillow warns about unusual but readable files, once an image.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with image_module.open(source, formats=_FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise too_large
                return _upright_rgb(image)
    except DataError:
        raise
    except FileNotFoundError as cause:
        raise DataError(f"{name} does not exist; check the path") from cause
    except image_module.DecompressionBombError as cause:  # Pillow's own limit
        raise too_large from cause
    except unidentified as cause:  # whose message has an address in memory
        raise DataError(
            f"{name}: the image cannot be decoded (it is none of {', '.join(_FORMATS)}); replace it, or leave its "
            "pairs out"
        ) from cause
    except Exception as cause:  # Pillow's decoders raise almost any exception on damaged bytes
        why = str(cause).split(" <_io")[0]  # else with the address of a buffer, which differs between runs
        raise DataError(f"{name}: the image cannot be decoded ({why}); replace it, or leave its pairs out") from cause


def _upright_rgb(image: Image) -> Image:
    image_module = require("PIL.Image", extra="data", purpose="read images")
    image_ops = require("PIL.ImageOps", extra="data", purpose="read images")
    upright = image_ops.exif_transpose(image)
    if upright.mode.startswith("I;16"):  # Pillow clips 16-bit grey instead of scaling it
        upright = image_module.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.has_transparency_data:
        # Dropping alpha would show the colour below it, usually black.
        layer = upright.convert("RGBA")
        white = image_module.new("RGBA", layer.size, "white")
        return image_module.alpha_composite(white, layer).convert("RGB")
    return upright.convert("RGB")


def tar_members(path: Path, problems: Problems) -> Iterator[TarMember]:
    """Iterate over the files of an uncompressed archive in order, without links and folders.

    A damaged archive yields the members before the damage and reports one problem.
    """
    try:
        length = os.path.getsize(path)
        with tarfile.open(path, "r:") as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # else tarfile keeps them all
                if member.offset_data + member.size > length:  # tarfile would check only after yielding it
                    raise tarfile.ReadError("unexpected end of data")
                if member.isreg() and not member.issparse():
                    yield TarMember(str(path), member.name, member.offset_data, member.size)
            damage = _damage_at(path, archive.offset)
    except FileNotFoundError:
        damage = "the archive does not exist"
    except (tarfile.TarError, OSError, ValueError) as cause:
        damage = "not a readable uncompressed tar archive" if "end of data" not in str(cause) else "cut off"
    if damage:
        problems.report(str(path), damage, "copy or make it again, and unpack .gz first")


def _damage_at(path: Path, end: int) -> str:
    """Why the members end at this byte, where tarfile raises no error."""
    with open(path, "rb") as file:
        file.seek(end)
        block = file.read(BLOCK)
    if len(block) < BLOCK:
        return "cut off"
    return "damaged in the middle" if any(block) else ""
