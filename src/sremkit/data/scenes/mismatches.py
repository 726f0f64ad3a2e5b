"""Wrong pairs of two kinds: shuffled, and subtle, where one attribute or relation in a caption is wrong.

The truth is returned beside the pairs and is no part of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from sremkit.data.pairs import Pairs
from sremkit.data.scenes.captions import Caption
from sremkit.data.scenes.claims import PLACES, RELATIONS, Claims, holds
from sremkit.data.scenes.collection import SceneImages, make_scenes
from sremkit.data.scenes.scene import BACKGROUNDS, COLORS, KINDS, SIZES, TEXTURES, Scene, scene_generator
from sremkit.errors import DataError

_MENTIONED = {"kind": KINDS, "color": COLORS, "size": SIZES, "texture": TEXTURES, "place": tuple(PLACES)}


@dataclass(frozen=True, eq=False)
class SceneTruth:
    """Which pairs are wrong, for evaluation alone; those that are wrong and not subtle are shuffled."""

    is_noisy: np.ndarray  # (m,) bool
    is_subtle: np.ndarray  # (m,) bool


def subtle_mismatches(pairs: Pairs, *, rate: float, seed: int) -> tuple[Pairs, np.ndarray]:
    """Make one attribute or relation wrong in the captions of a random `rate` of the pairs.

    The chosen captions are false of their pictures and keep their wording otherwise (and their pair ids).

    Returns:
        the pairs with some texts replaced, and the truth: (m,) bool, True where a text was made wrong.
    """
    changed, truth = _mismatched(pairs, rate=rate, subtle_share=1.0, seed=seed)
    return changed, truth.is_subtle


def mismatched_scenes(
    num_scenes: int = 2000,
    *,
    split: str = "train",
    seed: int = 0,
    rate: float,
    subtle_share: float = 0.0,
) -> tuple[Pairs, SceneTruth]:
    """Generate scenes of which about a `rate` of the pairs is wrong.

    Of the wrong ones a `subtle_share` is subtle; the others have their pictures shuffled among themselves,
    caption by caption. A shuffle may hand a caption its own picture back, so the truth is read off the
    outcome and its mean can fall a little short of `rate`. A caption that another picture happens to fit as
    well (about one in 4,000) counts as wrong.
    """
    pairs = make_scenes(num_scenes, split=split, seed=seed)
    return _mismatched(pairs, rate=rate, subtle_share=subtle_share, seed=seed)


def _mismatched(pairs: Pairs, *, rate: float, subtle_share: float, seed: int) -> tuple[Pairs, SceneTruth]:
    for name, share in (("rate", rate), ("subtle_share", subtle_share)):
        if not 0 <= share <= 1:
            raise DataError(f"{name} is a share between 0 and 1, got {share}; 0.4 means 40 %")
    originals = _original_captions(pairs)
    rng = scene_generator(seed=seed, split=pairs.split, index=0, purpose="mismatches")
    chosen = rng.permutation(len(pairs))[: round(rate * len(pairs))]
    num_subtle = round(subtle_share * len(chosen))
    subtle, shuffled = chosen[:num_subtle], chosen[num_subtle:]

    texts = list(pairs.texts)
    is_subtle = np.zeros(len(pairs), dtype=bool)
    is_subtle[subtle] = True
    for k in subtle:
        scene, caption = originals[k]
        texts[k] = falsified(caption, scene, rng).text
    image_of_text = pairs.image_of_text.copy()
    image_of_text[shuffled] = rng.permutation(image_of_text[shuffled])
    is_shuffled = image_of_text != pairs.image_of_text
    return replace(pairs, texts=texts, image_of_text=image_of_text), SceneTruth(
        is_subtle | is_shuffled, is_subtle
    )


def falsified(caption: Caption, scene: Scene, rng: np.random.Generator) -> Caption:
    """The caption with exactly one of its claims exchanged, such that it is false of the scene."""
    slots = [
        false
        for alternatives in _single_changes(caption.claims)
        if (false := [c for c in alternatives if not holds(scene, c) and not _betrays_itself(c)])
    ]
    # First what to change, then to what: otherwise colours, of which there are many, would be most changes.
    slot = slots[rng.integers(len(slots))]
    return replace(caption, claims=slot[rng.integers(len(slot))])


def _single_changes(claims: Claims) -> list[list[Claims]]:
    """All ways to exchange one claim, grouped by the claim that is exchanged."""
    slots = []
    for k, mention in enumerate(claims.mentions):
        for attribute, values in _MENTIONED.items():
            said = getattr(mention, attribute)
            if said is not None:
                others = [replace(mention, **{attribute: value}) for value in values if value != said]
                slots.append([replace(claims, mentions=_exchanged(claims.mentions, k, o)) for o in others])
    for k, relation in enumerate(claims.relations):
        turned = [replace(relation, name=name) for name in RELATIONS if name != relation.name]
        slots.append([replace(claims, relations=_exchanged(claims.relations, k, t)) for t in turned])
    if claims.background is not None:
        slots.append([replace(claims, background=b) for b in BACKGROUNDS if b != claims.background])
    return slots


def _exchanged(items: tuple, position: int, item: object) -> tuple:
    return (*items[:position], item, *items[position + 1 :])


def _betrays_itself(claims: Claims) -> bool:
    """Whether two shapes are told alike, as in no true caption: a model could learn that from texts alone."""
    for first, second in combinations(claims.mentions, 2):
        if first.kind == second.kind and first.color is not None and first.color == second.color:
            return True
        if first.place is not None and first.place == second.place:
            return True
    return False


def _original_captions(pairs: Pairs) -> list[tuple[Scene, Caption]]:
    """The scene and the caption behind each pair; refuses pairs that are no longer as they were made."""
    images = pairs.images
    if not isinstance(images, SceneImages):
        raise DataError(
            f"subtle mismatches are made in pairs from make_scenes, but '{pairs.name}' is another "
            "collection; for any other use make_noise"
        )
    made: dict[str, tuple[int, Scene, Caption]] = {}
    for number in range(len(images)):
        scene = images.scene(number)
        for position, caption in enumerate(images.captions(number)):
            made[images.pair_id(number, position)] = (number, scene, caption)
    originals = []
    for pair_id, text, image in zip(pairs.pair_ids, pairs.texts, pairs.image_of_text, strict=True):
        number, scene, caption = made[pair_id]
        if image != number or text != caption.text:
            raise DataError(
                f"the pair {pair_id} is already mismatched; make subtle mismatches in the pairs as "
                "make_scenes gives them and shuffle others afterwards, or use mismatched_scenes for both"
            )
        originals.append((scene, caption))
    return originals
