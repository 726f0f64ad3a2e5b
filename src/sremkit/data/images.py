"""Pictures by number, from files or from inside tar archives, decoded when asked for."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sremkit.data.tar_index import TarMember
from sremkit.errors import DataError
from sremkit.extras import require

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff")
# Named one by one because Pillow would otherwise try everything, and for EPS it starts another program.
_FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")
MAX_PIXELS = 100_000_000


class FileImages:
    """Pictures that are files; item k is `paths[k]`."""

    def __init__(self, paths: Sequence[str | Path], *, max_pixels: int = MAX_PIXELS) -> None:
        self.paths = [os.fspath(path) for path in paths]
        self.max_pixels = max_pixels

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        return self.paths[index]

    def open(self, index: int) -> Image:
        return decode_picture(self.paths[index], name=self.name(index), max_pixels=self.max_pixels)


class TarImages:
    """Pictures inside tar archives, read into memory at their offset; nothing is ever extracted to disk."""

    def __init__(self, members: Sequence[TarMember], *, max_pixels: int = MAX_PIXELS) -> None:
        self.max_pixels = max_pixels
        numbers: dict[str, int] = {}
        self._tar_of_image = np.array(
            [numbers.setdefault(m.tar, len(numbers)) for m in members], dtype=np.int32
        )
        self._tars = list(numbers)
        self._names = [m.name for m in members]
        self._offsets = np.array([m.offset for m in members], dtype=np.int64)
        self._sizes = np.array([m.size for m in members], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._names)

    def member(self, index: int) -> TarMember:
        """Where in which archive the picture lies."""
        tar = self._tars[self._tar_of_image[index]]
        return TarMember(tar, self._names[index], int(self._offsets[index]), int(self._sizes[index]))

    def name(self, index: int) -> str:
        return f"{self._tars[self._tar_of_image[index]]}, member {self._names[index]}"

    def open(self, index: int) -> Image:
        size = int(self._sizes[index])
        try:
            with open(self._tars[self._tar_of_image[index]], "rb") as tar:
                tar.seek(int(self._offsets[index]))
                data = tar.read(size)
        except OSError as cause:
            raise DataError(f"{self.name(index)} cannot be read ({cause}); was the archive moved?") from cause
        if len(data) < size:
            raise DataError(
                f"{self.name(index)}: the archive ends within this picture; copy the archive again"
            )
        return decode_picture(io.BytesIO(data), name=self.name(index), max_pixels=self.max_pixels)


def decode_picture(source: str | io.BytesIO, *, name: str, max_pixels: int = MAX_PIXELS) -> Image:
    """The picture in RGB, upright, transparency over white; an unreadable one is a `DataError`.

    Args:
        name: what to call the picture in messages.
        max_pixels: a larger picture is refused before its pixels are decoded, for a small file can hold
            more than the memory does.
    """
    image_module = require("PIL.Image", extra="data", purpose="read pictures")
    too_large = DataError(
        f"{name}: the picture has more than {max_pixels:,} pixels; make it smaller, or raise max_pixels"
    )
    try:
        # Pillow warns about odd but readable files; per picture of a large collection that is only noise.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with image_module.open(source, formats=_FORMATS) as picture:
                if picture.width * picture.height > max_pixels:
                    raise too_large
                return _upright_rgb(picture)
    except DataError:
        raise
    except FileNotFoundError as cause:
        raise DataError(f"{name} does not exist; check the path of the picture folder") from cause
    except image_module.DecompressionBombError as cause:  # Pillow's own limit, beyond any sensible one
        raise too_large from cause
    except Exception as cause:  # Pillow's decoders raise nearly anything when bytes are damaged
        raise DataError(
            f"{name}: the picture cannot be decoded ({cause}); replace it, or leave its pairs out"
        ) from cause


def _upright_rgb(picture: Image) -> Image:
    image_module = require("PIL.Image", extra="data", purpose="read pictures")
    image_ops = require("PIL.ImageOps", extra="data", purpose="read pictures")
    upright = image_ops.exif_transpose(picture)
    if upright.mode.startswith("I;16"):  # Pillow clips 16-bit grey to white instead of scaling it
        upright = image_module.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.has_transparency_data:
        # Dropping alpha would show whatever colour happens to lie beneath, usually black.
        layer = upright.convert("RGBA")
        white = image_module.new("RGBA", layer.size, "white")
        return image_module.alpha_composite(white, layer).convert("RGB")
    return upright.convert("RGB")
