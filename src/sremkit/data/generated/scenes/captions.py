"""Captions of scenes, each with the claims it makes, and whether a claim holds of a scene.

A caption is a template, a choice among synonyms and the claims; its text follows from these. A caption with one
claim exchanged therefore equals the original in every other word. A claim is about the shapes that the caption
mentions, not about all shapes: "a red star above a circle" holds if some red star is above some circle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations
from string import Formatter

import numpy as np

from sremkit.data.generated.scenes.scene import BACKGROUNDS, COLORS, KINDS, LAYOUT, SIZES, TEXTURES, Scene, Shape

CAPTIONS_PER_SCENE = 5

# The cells of each named place: a side is a whole row or column, a corner and the centre one cell.
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

_MENTIONED = {"kind": KINDS, "color": COLORS, "size": SIZES, "texture": TEXTURES, "place": tuple(PLACES)}

RELATIONS: dict[str, Callable[[Shape, Shape], bool]] = {
    "left of": lambda first, second: first.column < second.column,
    "right of": lambda first, second: first.column > second.column,
    "above": lambda first, second: first.row < second.row,
    "below": lambda first, second: first.row > second.row,
}


@dataclass(frozen=True)
class Mention:
    """A shape as a caption describes it; None for attributes that the caption omits."""

    kind: str
    color: str | None = None
    size: str | None = None
    texture: str | None = None
    place: str | None = None

    def matches(self, shape: Shape) -> bool:
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
    """All claims of one caption."""

    mentions: tuple[Mention, ...]
    relations: tuple[Relation, ...] = ()
    background: str | None = None


def holds(scene: Scene, claims: Claims) -> bool:
    """Whether all mentions can be assigned to different shapes of the scene such that every claim is true."""
    if claims.background not in (None, scene.background):
        return False
    return any(_all_true(shapes, claims) for shapes in permutations(scene.shapes, len(claims.mentions)))


def _all_true(shapes: Sequence[Shape], claims: Claims) -> bool:
    """Whether the claims are true if mention k refers to `shapes[k]`."""
    return all(mention.matches(shape) for mention, shape in zip(claims.mentions, shapes, strict=True)) and all(
        RELATIONS[r.name](shapes[r.first], shapes[r.second]) for r in claims.relations
    )


@dataclass(frozen=True)
class Template:
    """A sentence with placeholders: {a} a shape, {at_a} its place, {a_to_b} a relation, {background}."""

    pattern: str
    adjectives: tuple[int, int]  # minimum and maximum for each shape, of size, texture and colour

    @cached_property
    def placeholders(self) -> tuple[str, ...]:
        return tuple(name for _, name, _, _ in Formatter().parse(self.pattern) if name)

    @cached_property
    def num_mentions(self) -> int:
        return sum(letter in self.placeholders for letter in "abc")

    @cached_property
    def relations(self) -> tuple[str, ...]:
        return tuple(placeholder for placeholder in self.placeholders if "_to_" in placeholder)


# The numbers of adjectives keep every caption between 8 and 22 words. No template states both the place of a shape and
# its relation to another: with one of the two exchanged the caption would contradict itself, and a model could detect
# it without the image.
TEMPLATES = (
    Template("there is {a} {at_a} of the picture.", (3, 3)),
    Template("on a {background} background, {a} can be seen {at_a}.", (3, 3)),
    Template("{a} is {a_to_b} {b}.", (1, 3)),
    Template("we see {a} {a_to_b} {b} on a {background} background.", (1, 3)),
    Template("{a_to_b} {b} there is {a}.", (1, 3)),
    Template("this drawing shows {a} {a_to_b} {b}.", (1, 3)),
    Template("{a} {at_a} and {b} {at_b}.", (1, 3)),
    Template("{at_a} is {a}, while {b} is {at_b}.", (1, 2)),
    Template("a picture of {a} together with {b} on a {background} background.", (1, 3)),
    Template("{a} and {b} are drawn on {background} paper.", (1, 3)),
    Template("the picture shows {a}, {b} and {c}.", (1, 2)),
    Template("{a}, {b} and {c} share a {background} background.", (1, 2)),
    Template("{a} is {a_to_b} {b}, and {c} is {at_c}.", (1, 1)),
    Template("{a} sits {a_to_b} {b}, which is {b_to_c} {c}.", (1, 1)),
)

# Two sets of synonyms; words that are not listed are the same in both.
PHRASES: dict[str, tuple[str, str]] = {
    "large": ("large", "big"),
    "small": ("small", "little"),
    "dotted": ("dotted", "spotted"),
    "left of": ("to the left of", "left of"),
    "right of": ("to the right of", "right of"),
    "below": ("below", "beneath"),
    "top left": ("in the top left corner", "in the upper left corner"),
    "top right": ("in the top right corner", "in the upper right corner"),
    "bottom left": ("in the bottom left corner", "in the lower left corner"),
    "bottom right": ("in the bottom right corner", "in the lower right corner"),
    "centre": ("in the centre", "in the middle"),
    "top": ("at the top", "at the top"),
    "bottom": ("at the bottom", "at the bottom"),
    "left": ("on the left", "on the left side"),
    "right": ("on the right", "on the right side"),
}


@dataclass(frozen=True)
class Caption:
    """A sentence and its claims."""

    template: Template
    synonyms: int  # 0 or 1: column of PHRASES
    claims: Claims

    @property
    def text(self) -> str:
        words: dict[str, str] = {}
        for letter, mention in zip("abc", self.claims.mentions, strict=False):
            words[letter] = self._noun_phrase(mention)
            words[f"at_{letter}"] = self._phrase(mention.place or "")
        for placeholder, relation in zip(self.template.relations, self.claims.relations, strict=True):
            words[placeholder] = self._phrase(relation.name)
        words["background"] = self.claims.background or ""
        sentence = self.template.pattern.format(**words)
        return sentence[0].upper() + sentence[1:]

    def _noun_phrase(self, mention: Mention) -> str:
        adjectives = [self._phrase(word) for word in (mention.size, mention.texture, mention.color) if word]
        phrase = " ".join([*adjectives, mention.kind])
        return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"

    def _phrase(self, word: str) -> str:
        return PHRASES.get(word, (word, word))[self.synonyms]


def write_captions(scene: Scene, rng: np.random.Generator) -> tuple[Caption, ...]:
    """Describe the scene five times, each time with another template."""
    usable = [template for template in TEMPLATES if template.num_mentions <= len(scene.shapes)]
    chosen = rng.choice(len(usable), size=CAPTIONS_PER_SCENE, replace=False)
    return tuple(_write_caption(usable[k], scene, rng) for k in chosen)


def _write_caption(template: Template, scene: Scene, rng: np.random.Generator) -> Caption:
    order = rng.permutation(len(scene.shapes))[: template.num_mentions]
    shapes = [scene.shapes[k] for k in order]
    mentions = []
    for letter, shape in zip("abc", shapes, strict=False):
        num_adjectives = int(rng.integers(template.adjectives[0], template.adjectives[1] + 1))
        place = _exact_place(shape) if f"at_{letter}" in template.placeholders else None
        mentions.append(_describe(shape, num_adjectives, place, rng))
    relations = []
    for placeholder in template.relations:
        first, second = ("abc".index(letter) for letter in placeholder.split("_to_"))
        names = [name for name, true in RELATIONS.items() if true(shapes[first], shapes[second])]
        relations.append(Relation(first, names[rng.integers(len(names))], second))
    background = scene.background if "background" in template.placeholders else None
    claims = Claims(tuple(mentions), tuple(relations), background)
    return Caption(template, synonyms=int(rng.integers(2)), claims=claims)


def _describe(shape: Shape, num_adjectives: int, place: str | None, rng: np.random.Generator) -> Mention:
    """Mention some attributes of the shape; a single one is the colour, the most informative."""
    attributes = ["color", "size", "texture"]
    if num_adjectives > 1:
        attributes = [attributes[k] for k in rng.permutation(3)]
    chosen = {name: getattr(shape, name) for name in attributes[:num_adjectives]}
    return Mention(kind=shape.kind, place=place, **chosen)


def _exact_place(shape: Shape) -> str:
    """The narrowest place, so that all nine are about as frequent in true captions as in wrong ones."""
    return min((place for place in PLACES if shape.cell in PLACES[place]), key=lambda place: len(PLACES[place]))


def falsified(caption: Caption, scene: Scene, rng: np.random.Generator) -> Caption:
    """The caption with exactly one claim exchanged such that it is false of the scene."""
    slots = [
        false
        for alternatives in _single_changes(caption.claims)
        if (false := [c for c in alternatives if not holds(scene, c) and not _is_implausible(c)])
    ]
    # First choose the claim, then its value: otherwise most changes would be of colours, which are many.
    slot = slots[rng.integers(len(slots))]
    return replace(caption, claims=slot[rng.integers(len(slot))])


def _single_changes(claims: Claims) -> list[list[Claims]]:
    """All ways to exchange one claim, grouped by claim."""
    slots = []
    for k, mention in enumerate(claims.mentions):
        for attribute, values in _MENTIONED.items():
            current = getattr(mention, attribute)
            if current is not None:
                others = [replace(mention, **{attribute: value}) for value in values if value != current]
                slots.append([replace(claims, mentions=_exchanged(claims.mentions, k, o)) for o in others])
    for k, relation in enumerate(claims.relations):
        turned = [replace(relation, name=name) for name in RELATIONS if name != relation.name]
        slots.append([replace(claims, relations=_exchanged(claims.relations, k, t)) for t in turned])
    if claims.background is not None:
        slots.append([replace(claims, background=b) for b in BACKGROUNDS if b != claims.background])
    return slots


def _exchanged(items: tuple, position: int, item: object) -> tuple:
    return (*items[:position], item, *items[position + 1 :])


def _is_implausible(claims: Claims) -> bool:
    """Whether two shapes have the same description, as in no true caption: a model could detect that from the text."""
    for first, second in combinations(claims.mentions, 2):
        if first.kind == second.kind and first.color is not None and first.color == second.color:
            return True
        if first.place is not None and first.place == second.place:
            return True
    return False
