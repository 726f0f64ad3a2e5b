"""Captions of scenes are true, different, short sentences."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

from oracles import scenes as oracle
from scene_truths import as_dictionary, scene_images, shape, truths, words
from sremkit.data.generated.scenes import SceneImages, make_scenes
from sremkit.data.generated.scenes.captions import Claims, Mention, Relation, holds
from sremkit.data.generated.scenes.scene import Scene
from sremkit.data.pairs import Pairs

NUM_SCENES = 300


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return make_scenes(NUM_SCENES, seed=3)


def test_every_caption_is_true_of_its_scene(pairs: Pairs) -> None:
    assert truths(pairs).all()


def test_every_caption_keeps_its_own_claims(pairs: Pairs) -> None:
    images = scene_images(pairs)
    kept = [holds(images.scene(k), c.claims) for k in range(NUM_SCENES) for c in images.captions(k)]
    assert len(kept) == len(pairs)
    assert all(kept)


def test_holding_agrees_with_reading_the_words_in_other_scenes() -> None:
    """The claims and the text of a caption say the same, also where they are false."""
    images = SceneImages(60, seed=4)
    scenes = [images.scene(k) for k in range(60)]
    claimed, read = [], []
    for k, (scene, other) in product(range(60), zip(scenes, np.roll(scenes, 1), strict=True)):
        for caption in images.captions(k)[:2]:
            for seen in (scene, other):
                claimed.append(holds(seen, caption.claims))
                read.append(oracle.is_true(oracle.read_caption(caption.text), as_dictionary(seen)))
    assert 60 < sum(read) < len(read)  # both answers occur
    assert claimed == read


def test_captions_rarely_fit_another_scene(pairs: Pairs) -> None:
    elsewhere = pairs.paired_as((pairs.image_of_text + 1 + np.arange(len(pairs)) % 100) % NUM_SCENES)
    assert truths(elsewhere).mean() < 0.01


def test_the_five_captions_of_a_scene_differ(pairs: Pairs) -> None:
    for k in range(NUM_SCENES):
        assert len(set(pairs.texts[5 * k : 5 * k + 5])) == 5


def test_captions_are_short_sentences_of_few_different_words(pairs: Pairs) -> None:
    lengths = [len(words(text)) for text in pairs.texts]
    assert min(lengths) >= 8
    assert max(lengths) <= 22
    assert 40 < len({word for text in pairs.texts for word in words(text)}) < 120
    assert all(re.fullmatch(r"[A-Z][a-z, ]+\.", text) for text in pairs.texts)
    assert not any(re.search(r"\ban? (?=\w)(?:(?<=an )[^o]|(?<=a )o)", text) for text in pairs.texts)


HAND_SCENE = Scene("grey", (shape("star", "red", cell=0), shape("circle", "blue", cell=4, size="small")))


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        (Claims((Mention("star"),)), True),
        (Claims((Mention("star"), Mention("star"))), False),  # one star cannot stand for two
        (Claims((Mention("star", color="blue"),)), False),
        (Claims((Mention("circle", color="blue", size="small", texture="plain", place="centre"),)), True),
        (Claims((Mention("circle", size="large"),)), False),
        (Claims((Mention("circle", texture="dotted"),)), False),
        (Claims((Mention("star", place="top left"),)), True),
        (Claims((Mention("star", place="top"),)), True),  # a corner is at two sides
        (Claims((Mention("star", place="left"),)), True),
        (Claims((Mention("star", place="right"),)), False),
        (Claims((Mention("circle", place="top"),)), False),
        (Claims((Mention("star"),), background="grey"), True),
        (Claims((Mention("star"),), background="mint"), False),
        (Claims((Mention("star"), Mention("circle")), (Relation(0, "above", 1),)), True),
        (Claims((Mention("star"), Mention("circle")), (Relation(0, "left of", 1),)), True),
        (Claims((Mention("star"), Mention("circle")), (Relation(0, "right of", 1),)), False),
        (Claims((Mention("star"), Mention("circle")), (Relation(1, "below", 0),)), True),
    ],
)
def test_claims_about_a_scene_known_by_hand(claims: Claims, expected: bool) -> None:
    assert holds(HAND_SCENE, claims) is expected


def test_shapes_side_by_side_are_neither_above_nor_below() -> None:
    scene = Scene("white", (shape("star", cell=3), shape("heart", cell=5)))
    both = (Mention("star"), Mention("heart"))
    true = [
        name
        for name in ("left of", "right of", "above", "below")
        if holds(scene, Claims(both, (Relation(0, name, 1),)))
    ]
    assert true == ["left of"]
