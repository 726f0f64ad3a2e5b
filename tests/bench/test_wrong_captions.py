"""Kinds of wrong captions: each is what it says, tells the truth, and obeys its seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sremkit.bench import audit_collections
from sremkit.bench import wrong_captions as wrong
from sremkit.bench.audit_collections import NoisyPairs, RightPairs, make_wrong
from sremkit.errors import UserError

NOUNS = ("dog", "boy", "woman", "bike", "horse")
COLORS = ("red", "blue", "green", "white")


def right_pairs(captions_per_image: int = 1) -> RightPairs:
    """80 images with two captions each; the vector of a text is a hash of its words."""
    texts = [f"A {COLORS[k % 4]} {NOUNS[k % 5]} with item{k}x." for k in range(160)]
    emb = np.stack([encode_one(text) for text in texts])
    image_emb = np.arange(80, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    return RightPairs(image_emb, emb, texts, np.repeat(np.arange(80), 2), captions_per_image, encode=encode)


def encode_one(text: str) -> np.ndarray:
    words = wrong.content_words(text)
    return np.array([float(w in words) for w in (*NOUNS, *COLORS)] + [0.1 * len(text)], dtype=np.float32)


def encode(texts: Sequence[str]) -> np.ndarray:
    return np.stack([encode_one(text) for text in texts])


def draw(kind: str, *, captions_per_image: int = 1, seed: int = 0, rate: float = 0.5) -> NoisyPairs:
    size = 60 * captions_per_image
    return make_wrong(right_pairs(captions_per_image), kind=kind, rate=rate, size=size, seed=seed)


def true_image(text: str) -> int:
    return int(text.split("item")[1].split("x")[0]) // 2


@pytest.mark.parametrize("captions_per_image", [1, 2])
@pytest.mark.parametrize("kind", wrong.KINDS)
def test_the_truth_is_what_was_changed(kind: str, captions_per_image: int) -> None:
    noisy = draw(kind, captions_per_image=captions_per_image)
    assert len(noisy.pairs) == 60 * captions_per_image
    own = [int(noisy.pairs.image_ids[k]) for k in noisy.pairs.image_of_text]
    if kind == "one-word":
        originals = set(right_pairs().texts)
        changed = [text not in originals for text in noisy.pairs.texts]
        assert [true_image(text) for text in noisy.pairs.texts] == own
    else:
        changed = [true_image(text) != image for text, image in zip(noisy.pairs.texts, own, strict=True)]
    assert noisy.is_wrong.tolist() == changed
    assert 0.3 < noisy.is_wrong.mean() <= 0.5
    vectors = noisy.pairs.text_features.rows(np.arange(len(noisy.pairs))).values  # type: ignore[union-attr]
    np.testing.assert_array_equal(vectors, encode(noisy.pairs.texts))


@pytest.mark.parametrize("kind", wrong.KINDS)
def test_equal_seeds_give_equal_pairs(kind: str) -> None:
    assert draw(kind).pairs.texts == draw(kind).pairs.texts
    assert draw(kind).pairs.texts != draw(kind, seed=1).pairs.texts
    assert not draw(kind, rate=0.0).is_wrong.any()


@pytest.mark.parametrize("kind", ["random", "shared-word", "near"])
def test_exchanged_captions_stay_in_the_collection_once(kind: str) -> None:
    assert sorted(draw(kind).pairs.texts) == sorted(draw(kind, rate=0.0).pairs.texts)


def test_captions_of_absent_images_have_no_image_in_the_collection() -> None:
    noisy = draw("absent")
    present = {int(image) for image in noisy.pairs.image_ids}
    images = np.array([true_image(text) for text in noisy.pairs.texts])
    assert not set(images[noisy.is_wrong].tolist()) & present
    assert set(images[~noisy.is_wrong].tolist()) <= present


def test_exchanged_captions_share_a_word() -> None:
    clean, noisy = draw("shared-word", rate=0.0).pairs.texts, draw("shared-word")
    words = [(wrong.content_words(clean[k]), wrong.content_words(noisy.pairs.texts[k])) for k in range(60)]
    shared = np.array([bool(before & after) for before, after in words])
    assert shared[noisy.is_wrong].all()


def test_near_captions_are_nearer_than_random_ones() -> None:
    clean = encode(draw("near", rate=0.0).pairs.texts)
    moved = {kind: np.linalg.norm(encode(draw(kind).pairs.texts) - clean, axis=1).sum() for kind in ("near", "random")}
    assert moved["near"] < moved["random"] / 2


def test_one_word_is_exchanged_within_its_class() -> None:
    rng = np.random.default_rng(0)
    seen = {wrong.exchange_word("Two dogs sleep.", rng) for _ in range(50)}
    assert "Two cats sleep." in seen
    assert "Two dogs sleep." not in seen
    assert all(text is not None and len(text.split()) == 3 for text in seen)
    assert wrong.exchange_word("Nothing here", rng) is None


def test_a_collection_that_is_too_small_is_refused() -> None:
    with pytest.raises(UserError, match="80 pairs"):
        make_wrong(right_pairs(), kind="random", rate=0.4, size=100, seed=0)


def test_captions_are_encoded_once_for_all_detectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def count(texts: Sequence[str]) -> np.ndarray:
        encoded.append(len(texts))
        return encode(texts)

    monkeypatch.setattr(audit_collections, "read_right_pairs", lambda data, size: replace(right_pairs(), encode=count))
    options = {"kind": "one-word", "rate": 0.5, "size": 60, "folder": tmp_path}
    first, again, other = (audit_collections.draw_pairs("any", seed=seed, **options) for seed in (0, 0, 1))
    assert len(encoded) == 2  # for two seeds
    vectors = [noisy.pairs.text_features.rows(np.arange(60)).values for noisy in (first, again, other)]  # type: ignore
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert not np.array_equal(vectors[0], vectors[2])
