"""Mismatched scenes: captions that are called wrong are false of their image, and no others."""

from __future__ import annotations

import difflib
from collections import Counter

import numpy as np
import pytest

from oracles import scenes as oracle
from scene_truths import truths, words
from sremkit.data import make_noise
from sremkit.data.generated.scenes import make_scenes, mismatched_scenes
from sremkit.data.pairs import Pairs
from sremkit.errors import DataError

NUM_SCENES = 300


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return make_scenes(NUM_SCENES, seed=3)


@pytest.fixture(scope="module")
def subtle() -> tuple[Pairs, np.ndarray]:
    changed, truth = mismatched_scenes(NUM_SCENES, seed=3, rate=0.6, subtle_share=1.0)
    np.testing.assert_array_equal(truth.is_noisy, truth.is_subtle)
    return changed, truth.is_subtle


def test_subtle_captions_are_false_and_the_others_untouched(pairs: Pairs, subtle) -> None:
    changed, is_subtle = subtle
    assert is_subtle.sum() == 0.6 * len(pairs)
    np.testing.assert_array_equal(truths(changed), ~is_subtle)
    differs = np.array([a != b for a, b in zip(pairs.texts, changed.texts, strict=True)])
    np.testing.assert_array_equal(differs, is_subtle)
    assert list(changed.pair_ids) == list(pairs.pair_ids)
    np.testing.assert_array_equal(changed.image_of_text, pairs.image_of_text)


def test_subtle_captions_differ_in_one_claim_and_few_words(pairs: Pairs, subtle) -> None:
    changed, is_subtle = subtle
    exchanged: Counter[str] = Counter()
    for k in np.flatnonzero(is_subtle):
        before, after = words(pairs.texts[k]), words(changed.texts[k])
        edits = [
            e for e in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes() if e[0] != "equal"
        ]
        assert max(edits[-1][2] - edits[0][1], edits[-1][4] - edits[0][3]) <= 5  # "in the top left corner"
        old, new = flat(oracle.read_caption(pairs.texts[k])), flat(oracle.read_caption(changed.texts[k]))
        assert old.keys() == new.keys()
        different = [key for key in old if old[key] != new[key]]
        assert len(different) == 1
        exchanged[different[0].split()[-1]] += 1
    assert set(exchanged) == {"kind", "color", "size", "texture", "place", "relation", "background"}
    assert min(exchanged.values()) > 0.03 * is_subtle.sum()  # each kind of error really occurs


def flat(claims: dict) -> dict[str, object]:
    said = {f"{k} {name}": value for k, mention in enumerate(claims["shapes"]) for name, value in mention.items()}
    said |= {f"{k} relation": relation for k, relation in enumerate(claims["relations"])}
    return said | {"background": claims["background"]}


def test_subtle_captions_are_plausible(pairs: Pairs, subtle) -> None:
    """True captions never tell two shapes alike; a wrong one that did could be found without the image."""
    for text in [*pairs.texts, *subtle[0].texts]:
        shapes = oracle.read_caption(text)["shapes"]
        places = [s["place"] for s in shapes if "place" in s]
        assert len(set(places)) == len(places)
        looks = [(s["kind"], s["color"]) for s in shapes if "color" in s]
        assert len(set(looks)) == len(looks)


def test_mismatches_obey_their_seed(subtle) -> None:
    again, truth = mismatched_scenes(NUM_SCENES, seed=3, rate=0.6, subtle_share=1.0)
    assert again.texts == subtle[0].texts
    np.testing.assert_array_equal(truth.is_subtle, subtle[1])
    _, other = mismatched_scenes(NUM_SCENES, seed=4, rate=0.6, subtle_share=1.0)
    assert (other.is_subtle != truth.is_subtle).any()


def test_both_kinds_of_mismatches_have_the_requested_fractions() -> None:
    pairs, truth = mismatched_scenes(200, seed=1, rate=0.4, subtle_share=0.25)
    clean = make_scenes(200, seed=1)
    moved = pairs.image_of_text != clean.image_of_text
    rewritten = np.array([a != b for a, b in zip(pairs.texts, clean.texts, strict=True)])
    np.testing.assert_array_equal(rewritten, truth.is_subtle)
    np.testing.assert_array_equal(moved | rewritten, truth.is_noisy)
    assert not (moved & rewritten).any()
    assert truth.is_subtle.sum() == 100  # 0.25 of 0.4 of 1,000
    # 300 are shuffled; of 300 about one gets an image of its own back.
    assert 290 <= moved.sum() <= 300
    np.testing.assert_array_equal(np.sort(pairs.image_of_text), clean.image_of_text)
    # By the words: subtle ones are all false, untouched ones all true, shuffled ones hardly ever true.
    true = truths(pairs)
    assert true[~truth.is_noisy].all()
    assert not true[truth.is_subtle].any()
    assert true[moved].mean() < 0.01


@pytest.mark.parametrize("subtle_share", [0.0, 1.0])
def test_mismatches_of_one_kind_only(subtle_share: float) -> None:
    _, truth = mismatched_scenes(50, rate=0.4, subtle_share=subtle_share)
    assert truth.is_noisy.sum() > 90
    assert truth.is_subtle.sum() == subtle_share * 100


def test_scenes_are_shuffled_like_any_other_collection(pairs: Pairs) -> None:
    noise = make_noise(pairs.image_of_text, rate=0.4, seed=0)
    shuffled = pairs.paired_as(noise.image_of_text)
    assert truths(shuffled)[~noise.is_noisy].all()
    assert truths(shuffled)[noise.is_noisy].mean() < 0.01


def test_fractions_and_seeds_out_of_range_are_refused() -> None:
    with pytest.raises(DataError, match="rate is a fraction between 0 and 1, got 40"):
        mismatched_scenes(5, rate=40)
    with pytest.raises(DataError, match="subtle_share is a fraction"):
        mismatched_scenes(5, rate=0.4, subtle_share=-0.1)
    with pytest.raises(DataError, match="seed of scenes must be 0 or more"):
        mismatched_scenes(5, rate=0.1, seed=-1)
