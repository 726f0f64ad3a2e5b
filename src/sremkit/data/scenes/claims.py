"""What a caption claims about a picture, and whether it is so.

A claim is about shapes that the caption mentions, not about all shapes: "a red star above a circle" holds
wherever some red star is above some circle, whatever else there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations

from sremkit.data.scenes.scene import LAYOUT, Scene, Shape

# The cells that a named place covers: a side is the whole row or column, a corner and the centre one cell.
PLACES: dict[str, frozenset[int]] = {
    "top left": frozenset({0}),
    "top right": frozenset({LAYOUT - 1}),
    "bottom left": frozenset({LAYOUT**2 - LAYOUT}),
    "bottom right": frozenset({LAYOUT**2 - 1}),
    "centre": frozenset({LAYOUT**2 // 2}),
    "top": frozenset(range(LAYOUT)),
    "bottom": frozenset(range(LAYOUT**2 - LAYOUT, LAYOUT**2)),
    "left": frozenset(range(0, LAYOUT**2, LAYOUT)),
    "right": frozenset(range(LAYOUT - 1, LAYOUT**2, LAYOUT)),
}

RELATIONS: dict[str, Callable[[Shape, Shape], bool]] = {
    "left of": lambda first, second: first.column < second.column,
    "right of": lambda first, second: first.column > second.column,
    "above": lambda first, second: first.row < second.row,
    "below": lambda first, second: first.row > second.row,
}


@dataclass(frozen=True)
class Mention:
    """A shape as a caption describes it; None is what the caption leaves open."""

    kind: str
    color: str | None = None
    size: str | None = None
    texture: str | None = None
    place: str | None = None

    def fits(self, shape: Shape) -> bool:
        return (
            self.kind == shape.kind
            and self.color in (None, shape.color)
            and self.size in (None, shape.size)
            and self.texture in (None, shape.texture)
            and (self.place is None or shape.cell in PLACES[self.place])
        )


@dataclass(frozen=True)
class Relation:
    """The shape of mention `first` stands in this relation to the shape of mention `second`."""

    first: int
    name: str  # a key of RELATIONS
    second: int


@dataclass(frozen=True)
class Claims:
    """All that one caption claims."""

    mentions: tuple[Mention, ...]
    relations: tuple[Relation, ...] = ()
    background: str | None = None


def holds(scene: Scene, claims: Claims) -> bool:
    """Whether different shapes of the scene can be found for all mentions so that every claim is true."""
    if claims.background not in (None, scene.background):
        return False
    return any(_all_true(shapes, claims) for shapes in permutations(scene.shapes, len(claims.mentions)))


def _all_true(shapes: Sequence[Shape], claims: Claims) -> bool:
    """Whether the claims are true when `shapes[k]` is what mention k speaks of."""
    return all(mention.fits(shape) for mention, shape in zip(claims.mentions, shapes, strict=True)) and all(
        RELATIONS[r.name](shapes[r.first], shapes[r.second]) for r in claims.relations
    )
