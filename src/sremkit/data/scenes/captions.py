"""Captions: a scene told in five ways, each with the claims it makes.

A caption is a template, a choice among synonyms and the claims; its text follows from these. So a caption
with one claim exchanged reads like the original in every other word.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from string import Formatter

import numpy as np

from sremkit.data.scenes.claims import PLACES, RELATIONS, Claims, Mention, Relation
from sremkit.data.scenes.scene import Scene, Shape

CAPTIONS_PER_SCENE = 5


@dataclass(frozen=True)
class Template:
    """A sentence with gaps: {a} a shape, {at_a} its place, {a_to_b} a relation, {background}."""

    pattern: str
    adjectives: tuple[int, int]  # fewest and most for each shape, of size, texture and colour

    @cached_property
    def gaps(self) -> tuple[str, ...]:
        return tuple(name for _, name, _, _ in Formatter().parse(self.pattern) if name)

    @cached_property
    def num_mentions(self) -> int:
        return sum(letter in self.gaps for letter in "abc")

    @cached_property
    def relations(self) -> tuple[str, ...]:
        return tuple(gap for gap in self.gaps if "_to_" in gap)


# The numbers of adjectives keep every caption between 8 and 22 words. No template gives the place of a shape
# and its relation to another: with one of the two exchanged the caption would contradict itself, and a model
# could tell it is wrong without the picture.
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

# Two speakers: each keeps to one word for a thing. What is not listed both call by its name.
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
    """A sentence and what it claims."""

    template: Template
    speaker: int  # 0 or 1: whose words of PHRASES
    claims: Claims

    @property
    def text(self) -> str:
        words: dict[str, str] = {}
        for letter, mention in zip("abc", self.claims.mentions, strict=False):
            words[letter] = self._noun_phrase(mention)
            words[f"at_{letter}"] = self._say(mention.place or "")
        for gap, relation in zip(self.template.relations, self.claims.relations, strict=True):
            words[gap] = self._say(relation.name)
        words["background"] = self.claims.background or ""
        sentence = self.template.pattern.format(**words)
        return sentence[0].upper() + sentence[1:]

    def _noun_phrase(self, mention: Mention) -> str:
        adjectives = [self._say(word) for word in (mention.size, mention.texture, mention.color) if word]
        phrase = " ".join([*adjectives, mention.kind])
        return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"

    def _say(self, word: str) -> str:
        return PHRASES.get(word, (word, word))[self.speaker]


def write_captions(scene: Scene, rng: np.random.Generator) -> tuple[Caption, ...]:
    """Tell the scene five times, each time in another template."""
    usable = [template for template in TEMPLATES if template.num_mentions <= len(scene.shapes)]
    chosen = rng.choice(len(usable), size=CAPTIONS_PER_SCENE, replace=False)
    return tuple(_write_caption(usable[k], scene, rng) for k in chosen)


def _write_caption(template: Template, scene: Scene, rng: np.random.Generator) -> Caption:
    order = rng.permutation(len(scene.shapes))[: template.num_mentions]
    shapes = [scene.shapes[k] for k in order]
    mentions = []
    for letter, shape in zip("abc", shapes, strict=False):
        num_adjectives = int(rng.integers(template.adjectives[0], template.adjectives[1] + 1))
        place = _exact_place(shape) if f"at_{letter}" in template.gaps else None
        mentions.append(_describe(shape, num_adjectives, place, rng))
    relations = []
    for gap in template.relations:
        first, second = ("abc".index(letter) for letter in gap.split("_to_"))
        names = [name for name, true in RELATIONS.items() if true(shapes[first], shapes[second])]
        relations.append(Relation(first, names[rng.integers(len(names))], second))
    background = scene.background if "background" in template.gaps else None
    claims = Claims(tuple(mentions), tuple(relations), background)
    return Caption(template, speaker=int(rng.integers(2)), claims=claims)


def _describe(shape: Shape, num_adjectives: int, place: str | None, rng: np.random.Generator) -> Mention:
    """Mention the shape with so many of its attributes; a single one is the colour, which says most."""
    attributes = ["color", "size", "texture"]
    if num_adjectives > 1:
        attributes = [attributes[k] for k in rng.permutation(3)]
    said = {name: getattr(shape, name) for name in attributes[:num_adjectives]}
    return Mention(kind=shape.kind, place=place, **said)


def _exact_place(shape: Shape) -> str:
    """The narrowest place: so each of the nine is about as frequent in true captions as in wrong ones."""
    return min(
        (place for place in PLACES if shape.cell in PLACES[place]), key=lambda place: len(PLACES[place])
    )
