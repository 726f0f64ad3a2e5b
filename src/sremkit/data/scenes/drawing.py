"""Pictures of scenes, drawn with Pillow at any size.

Textures are laid over the whole picture and show through the shapes, in step with the 6×6 grid that region
features are cut from: a stripe falls on the same pixels of every patch, so that a linear layer can know it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from sremkit.data.scenes.outlines import OUTLINES
from sremkit.data.scenes.scene import LAYOUT, Scene, Shape
from sremkit.extras import require

if TYPE_CHECKING:
    from PIL.Image import Image

Color = tuple[int, int, int]

PAINT: dict[str, Color] = {
    "red": (219, 40, 46),
    "orange": (246, 140, 20),
    "yellow": (250, 212, 30),
    "green": (44, 158, 75),
    "blue": (35, 98, 214),
    "purple": (123, 52, 168),
    "pink": (245, 128, 188),
    "black": (38, 38, 44),
}
PAPER: dict[str, Color] = {
    "white": (252, 252, 252),
    "grey": (199, 203, 210),
    "beige": (238, 222, 188),
    "mint": (196, 234, 214),
}
MARK: Color = (255, 255, 255)  # stripes and dots

RADIUS = {"small": 0.27, "large": 0.4}  # in cells; with the shift a shape stays inside its cell
EDGE = 0.035  # width of the line around a shape, in cells
TEXTURES_PER_SIDE = 12  # periods of a texture along the picture: two for each patch
SUPERSAMPLING = 4


def draw_scene(scene: Scene, size: int) -> Image:
    """The picture of a scene, RGB, `size` pixels square."""
    image_module = require("PIL.Image", extra="data", purpose="draw scenes")
    picture = image_module.new("RGB", (size, size), PAPER[scene.background])
    for shape in scene.shapes:
        _paint(picture, shape)
    return picture


def _paint(picture: Image, shape: Shape) -> None:
    size = picture.width
    cell = size / LAYOUT
    middle = cell * (0.5 + np.array([shape.column, shape.row]) + shape.shift)  # (2,) right and down
    points = middle + cell * RADIUS[shape.size] * OUTLINES[shape.kind]  # (p, 2)
    left, top = (int(v) for v in np.floor(points.min(0) - cell * EDGE))
    right, bottom = (int(v) for v in np.ceil(points.max(0) + cell * EDGE))
    inside, edge = _masks(points - (left, top), (right - left, bottom - top), cell * EDGE)
    paint = PAINT[shape.color]
    texture = _textured(paint, shape.texture, size).crop((left, top, right, bottom))
    picture.paste(texture, (left, top), inside)
    # A little darker than the paint; much darker, and this line would make a small yellow star orange.
    picture.paste(tuple(int(0.85 * v) for v in paint), (left, top, right, bottom), edge)


def _masks(points: np.ndarray, box: tuple[int, int], line_width: float) -> tuple[Image, Image]:
    """How much of each pixel is inside the outline, and how much is under the line along it."""
    image_module = require("PIL.Image", extra="data", purpose="draw scenes")
    draw_module = require("PIL.ImageDraw", extra="data", purpose="draw scenes")
    fine = (box[0] * SUPERSAMPLING, box[1] * SUPERSAMPLING)
    corners = [(float(x), float(y)) for x, y in points * SUPERSAMPLING]
    inside = image_module.new("L", fine)
    draw_module.Draw(inside).polygon(corners, fill=255)
    edge = image_module.new("L", fine)
    width = max(1, round(line_width * SUPERSAMPLING))
    draw_module.Draw(edge).line([*corners, *corners[:2]], fill=255, width=width, joint="curve")
    return inside.reduce(SUPERSAMPLING), edge.reduce(SUPERSAMPLING)


@lru_cache(maxsize=256)
def _textured(paint: Color, texture: str, size: int) -> Image:
    """A whole picture in this paint and texture."""
    image_module = require("PIL.Image", extra="data", purpose="draw scenes")
    fine = size * SUPERSAMPLING
    phase = (np.arange(fine) + 0.5) / fine * TEXTURES_PER_SIDE % 1  # (fine,) in [0, 1)
    x, y = phase[None, :], phase[:, None]
    if texture == "striped":
        marked = (x + y) % 1 < 0.35
    elif texture == "dotted":
        # A dot falls on the middle of each cell, so that even the arms of a small cross show some.
        marked = (0.5 - abs(x - 0.5)) ** 2 + (0.5 - abs(y - 0.5)) ** 2 < 0.3**2
    else:
        marked = np.zeros((fine, fine), dtype=bool)
    pixels = np.where(marked[..., None], MARK, paint).astype(np.uint8)  # (fine, fine, 3)
    return image_module.fromarray(pixels).reduce(SUPERSAMPLING)
