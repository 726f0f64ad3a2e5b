"""A scene: a background and two or three shapes in different cells of a 3×3 layout, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from sremkit.errors import DataError

KINDS = ("circle", "square", "triangle", "diamond", "star", "cross", "heart")
COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black")
SIZES = ("small", "large")
TEXTURES = ("plain", "striped", "dotted")
BACKGROUNDS = ("white", "grey", "beige", "mint")
SPLITS = ("train", "val", "test")

Purpose = Literal["scene", "captions", "mismatches"]  # what a random stream is for

LAYOUT = 3  # cells along one side of the picture
MAX_SHIFT = 0.06  # how far a shape strays from the middle of its cell, in cells


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
    """What a picture shows. No two shapes share both kind and colour."""

    background: str
    shapes: tuple[Shape, ...]


def scene_generator(*, seed: int, split: str, index: int, purpose: Purpose) -> np.random.Generator:
    """The random stream of one scene; nothing else enters, so scene k is the same in any collection."""
    if seed < 0:
        raise DataError(f"the seed of scenes must be 0 or more, got {seed}; choose another number")
    return np.random.default_rng([seed, SPLITS.index(split), index, get_args(Purpose).index(purpose)])


def sample_scene(rng: np.random.Generator) -> Scene:
    """Draw a scene of two or three shapes."""
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
