"""A scene: two or three shapes in a 3×3 layout, sampled from a seed, drawn with Pillow; a 6×6 grid of patch features.

A patch has d = 204 numbers: 8 · 8 · 3 pixel values, then 6 that encode its row and 6 its column; without the position
a model that treats regions as a set could not distinguish left from right. Textures are aligned with the grid: a
stripe covers the same pixels of every patch, so that a linear layer can detect it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from sremkit.errors import DataError
from sremkit.extras import require

if TYPE_CHECKING:
    from PIL.Image import Image

KINDS = ("circle", "square", "triangle", "diamond", "star", "cross", "heart")
TEXTURES = ("plain", "striped", "dotted")
SPLITS = ("train", "val", "test")

Purpose = Literal["scene", "captions", "mismatches"]  # of a random stream

LAYOUT = 3  # cells along one side of the image
MAX_SHIFT = 0.06  # of a shape from the centre of its cell, in cells

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
RADIUS = {"small": 0.27, "large": 0.4}  # in cells; a shifted shape stays inside its cell
COLORS, BACKGROUNDS, SIZES = tuple(PAINT), tuple(PAPER), tuple(RADIUS)

EDGE = 0.035  # width of the outline of a shape, in cells
TEXTURES_PER_SIDE = 12  # periods of a texture along the image, two per patch
SUPERSAMPLING = 4

GRID = 6  # patches along one side
PATCH = 8  # pixels along one side of a patch
NUM_PATCHES = GRID**2
PATCH_DIM = PATCH * PATCH * 3 + 2 * GRID
DRAWN_AT = 2 * GRID * PATCH  # pixels; the image is drawn at twice the size and reduced

# Approximate mean and standard deviation of all pixels; fixed, so that features do not depend on the collection.
PIXEL_MEAN = 0.8
PIXEL_SPREAD = 0.2

_ROW_AND_COLUMN = np.concatenate(
    [np.repeat(np.eye(GRID), GRID, axis=0), np.tile(np.eye(GRID), (GRID, 1))], axis=1
).astype(np.float32)  # (36, 12)


@dataclass(frozen=True)
class Shape:
    """One shape of a scene."""

    kind: str
    color: str
    size: str
    texture: str
    cell: int  # 0 is the top left, LAYOUT² - 1 the bottom right
    shift: tuple[float, float]  # (right, down), in cells

    @property
    def row(self) -> int:
        return self.cell // LAYOUT

    @property
    def column(self) -> int:
        return self.cell % LAYOUT


@dataclass(frozen=True)
class Scene:
    """The content of an image. No two shapes share both kind and colour."""

    background: str
    shapes: tuple[Shape, ...]


def scene_generator(*, seed: int, split: str, index: int, purpose: Purpose) -> np.random.Generator:
    """The random stream of one scene; scene k is the same in any collection."""
    if seed < 0:
        raise DataError(f"the seed of scenes must be 0 or more, got {seed}; choose another number")
    return np.random.default_rng([seed, SPLITS.index(split), index, get_args(Purpose).index(purpose)])


def sample_scene(rng: np.random.Generator) -> Scene:
    """Sample a scene of two or three shapes."""
    num_shapes = int(rng.integers(2, 4))
    cells = rng.choice(LAYOUT**2, size=num_shapes, replace=False)
    kinds_and_colors = rng.choice(len(KINDS) * len(COLORS), size=num_shapes, replace=False)
    shapes = []
    for cell, kind_and_color in zip(cells, kinds_and_colors, strict=True):
        kind, color = divmod(int(kind_and_color), len(COLORS))
        right, down = rng.uniform(-MAX_SHIFT, MAX_SHIFT, size=2)
        shapes.append(
            Shape(
                kind=KINDS[kind],
                color=COLORS[color],
                size=SIZES[rng.integers(len(SIZES))],
                texture=TEXTURES[rng.integers(len(TEXTURES))],
                cell=int(cell),
                shift=(float(right), float(down)),
            )
        )
    return Scene(background=BACKGROUNDS[rng.integers(len(BACKGROUNDS))], shapes=tuple(shapes))


def draw_scene(scene: Scene, size: int) -> Image:
    """The image of a scene, RGB, `size` pixels square."""
    image_module = require("PIL.Image", extra="data", purpose="draw scenes")
    image = image_module.new("RGB", (size, size), PAPER[scene.background])
    for shape in scene.shapes:
        _paint(image, shape)
    return image


def _paint(image: Image, shape: Shape) -> None:
    size = image.width
    cell = size / LAYOUT
    middle = cell * (0.5 + np.array([shape.column, shape.row]) + shape.shift)  # (2,) right and down
    points = middle + cell * RADIUS[shape.size] * OUTLINES[shape.kind]  # (p, 2)
    left, top = (int(v) for v in np.floor(points.min(0) - cell * EDGE))
    right, bottom = (int(v) for v in np.ceil(points.max(0) + cell * EDGE))
    inside, edge = _masks(points - (left, top), (right - left, bottom - top), cell * EDGE)
    paint = PAINT[shape.color]
    texture = _textured(paint, shape.texture, size).crop((left, top, right, bottom))
    image.paste(texture, (left, top), inside)
    # A little darker than the paint; a much darker outline would make a small yellow star look orange.
    image.paste(tuple(int(0.85 * v) for v in paint), (left, top, right, bottom), edge)


def _masks(points: np.ndarray, box: tuple[int, int], line_width: float) -> tuple[Image, Image]:
    """Coverage of each pixel by the shape and by its outline."""
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
    """A whole image in this paint and texture."""
    image_module = require("PIL.Image", extra="data", purpose="draw scenes")
    fine = size * SUPERSAMPLING
    phase = (np.arange(fine) + 0.5) / fine * TEXTURES_PER_SIDE % 1  # (fine,) in [0, 1)
    x, y = phase[None, :], phase[:, None]
    if texture == "striped":
        marked = (x + y) % 1 < 0.35
    elif texture == "dotted":
        # With a dot at the centre of each cell, even the arms of a small cross show some.
        marked = (0.5 - abs(x - 0.5)) ** 2 + (0.5 - abs(y - 0.5)) ** 2 < 0.3**2
    else:
        marked = np.zeros((fine, fine), dtype=bool)
    pixels = np.where(marked[..., None], MARK, paint).astype(np.uint8)  # (fine, fine, 3)
    return image_module.fromarray(pixels).reduce(SUPERSAMPLING)


def patch_features(image: Image) -> np.ndarray:
    """The features of an image of `DRAWN_AT` pixels square, (36, 204) float32, row by row."""
    pixels = np.asarray(image.reduce(2), dtype=np.float32) / 255  # (48, 48, 3)
    values = (pixels - PIXEL_MEAN) / PIXEL_SPREAD
    patches = values.reshape(GRID, PATCH, GRID, PATCH, 3).swapaxes(1, 2)  # (6, 6, 8, 8, 3)
    return np.concatenate([patches.reshape(NUM_PATCHES, -1), _ROW_AND_COLUMN], axis=1)  # (36, 204)


def _around(radii: list[float], *, turn: float = 0.0) -> np.ndarray:
    """Points at these distances, clockwise from the top; `turn` is in steps between two points."""
    angle = 2 * np.pi * (np.arange(len(radii)) + turn) / len(radii)
    return np.array(radii)[:, None] * np.stack([np.sin(angle), -np.cos(angle)], axis=1)


def _cross(*, arm: float, end: float) -> np.ndarray:
    top = np.array([(-arm, -arm), (-arm, -end), (arm, -end)])
    right, bottom = top @ [[0, 1], [-1, 0]], -top  # quarter turn, half turn
    return np.concatenate([top, right, bottom, -right])


def _heart() -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    across = 16 * np.sin(t) ** 3
    up = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([across, -(up + 2.5)], axis=1) / 16.5


OUTLINES: dict[str, np.ndarray] = {
    "circle": _around([0.95] * 64),
    "square": _around([1.15] * 4, turn=0.5),
    "triangle": np.array([(0.0, -0.95), (0.95, 0.75), (-0.95, 0.75)]),
    "diamond": _around([1.0, 0.7, 1.0, 0.7]),
    "star": _around([1.05, 0.48] * 5) + np.array([0.0, 0.08]),
    "cross": _cross(arm=0.33, end=0.95),
    "heart": _heart(),
}
