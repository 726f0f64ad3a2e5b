"""Images: always RGB, upright, of bounded size; damaged ones are reported."""

from __future__ import annotations

import io
import pickle
import zlib

import numpy as np
import pytest
from PIL import Image

from layouts import image_bytes, make_image, write_image, write_tar
from sremkit.data import images as images_module
from sremkit.data.images import FileImages, TarImages, decode_image, tar_members
from sremkit.data.pairs import Problems
from sremkit.errors import DataError


def decode(data: bytes) -> Image.Image:
    return decode_image(io.BytesIO(data), name="x.png")


def encoded(image: Image.Image, format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def test_files_open_by_number(tmp_path):
    images = FileImages([write_image(tmp_path / "a.png"), str(write_image(tmp_path / "b.png", "blue"))])
    assert len(images) == 2
    assert images.name(1) == str(tmp_path / "b.png")
    assert images.open(1).getpixel((8, 6)) == (0, 0, 255)
    assert pickle.loads(pickle.dumps(images)).open(1).tobytes() == images.open(1).tobytes()


def test_tar_members_open_by_number(tmp_path):
    colors = ("red", "blue", "lime")
    paths = [write_tar(tmp_path / f"{c}.tar", [("pad.txt", b"x" * 700), ("p.png", image_bytes(c))]) for c in colors]
    members = [member for path in paths for member in tar_members(path, Problems()) if member.name == "p.png"]
    images = pickle.loads(pickle.dumps(TarImages(members)))
    assert [images.open(k).getpixel((8, 6)) for k in (2, 0, 1)] == [(0, 255, 0), (255, 0, 0), (0, 0, 255)]
    assert images.name(1) == f"{tmp_path / 'blue.tar'}, member p.png"


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "1", "RGBA", "LA"])
def test_every_mode_becomes_rgb(mode):
    kind = "TIFF" if mode == "CMYK" else "PNG"
    result = decode(encoded(make_image("white", mode=mode), kind))
    assert result.mode == "RGB"
    assert result.getpixel((8, 6)) == (255, 255, 255)
    assert max(result.getpixel((2, 2))) < 40


def test_transparency_lies_over_white():
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    image.putpixel((0, 0), (255, 0, 0, 255))
    result = decode(encoded(image))
    assert result.getpixel((0, 0)) == (255, 0, 0)
    assert result.getpixel((3, 3)) == (255, 255, 255)


def test_a_transparent_palette_lies_over_white_too():
    image = Image.new("P", (4, 4), 0)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.putpixel((0, 0), 1)
    result = decode(encoded(image, transparency=bytes([0, 255])))
    assert result.getpixel((0, 0)) == (255, 0, 0)
    assert result.getpixel((3, 3)) == (255, 255, 255)


def test_grey_of_16_bits_is_scaled_not_clipped():
    image = Image.fromarray(np.full((4, 4), 128 * 256, dtype=np.uint16))
    assert decode(encoded(image)).getpixel((0, 0)) == (128, 128, 128)


def test_a_photograph_taken_sideways_is_turned_upright():
    upright = make_image(size=(12, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: turn by 90 degrees
    assert decode(encoded(upright, "JPEG", exif=exif)).size == (8, 12)


def test_an_image_beyond_the_pixel_limit_is_refused(monkeypatch):
    data = image_bytes()  # 12 by 8: 96 pixels
    monkeypatch.setattr(images_module, "MAX_PIXELS", 96)
    assert decode(data).size == (12, 8)
    monkeypatch.setattr(images_module, "MAX_PIXELS", 95)
    with pytest.raises(DataError, match=r"x\.png: the image has more than 95 pixels; .*images\.MAX_PIXELS"):
        decode(data)


@pytest.mark.parametrize("side", [10_001, 20_000])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(side):
    """A PNG header may claim any size; 20,000 squared is past the limit at which Pillow itself refuses."""
    data = bytearray(encoded(Image.new("1", (8, 8))))
    data[16:24] = side.to_bytes(4, "big") * 2  # width and height in the header
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(DataError, match="more than 100,000,000 pixels"):
        decode(bytes(data))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP"])
def test_a_truncated_image_is_named(tmp_path, format):
    path = tmp_path / f"a.{format.lower()}"
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    path.write_bytes(encoded(Image.fromarray(noise), format)[:-700])
    with pytest.raises(DataError, match=rf"a\.{format.lower()}: the image cannot be decoded .*replace it"):
        FileImages([path]).open(0)


@pytest.mark.parametrize("data", [b"", b"<html>404</html>"])
def test_what_is_no_image_is_named(data):
    with pytest.raises(DataError, match=r"x\.png: the image cannot be decoded"):
        decode(data)


def test_postscript_is_refused_before_a_program_is_started_for_it():
    with pytest.raises(DataError, match="it is none of JPEG, PNG"):
        decode(encoded(make_image(), "EPS"))


def test_a_missing_image_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.png does not exist; check the path"):
        FileImages([tmp_path / "none.png"]).open(0)


def test_an_archive_that_changed_after_indexing_is_named(tmp_path):
    path = write_tar(tmp_path / "0.tar", [("a.png", image_bytes())])
    images = TarImages(list(tar_members(path, Problems())))
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(DataError, match=r"0\.tar, member a\.png: the archive ends within this image"):
        images.open(0)
    path.unlink()
    with pytest.raises(DataError, match=r"0\.tar, member a\.png cannot be read"):
        images.open(0)
