"""Kinds of wrong captions are what they say, and the table counts what holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.audit_coverage import table
from benchmarks.mismatch_kinds import KINDS, content_words, make_collection
from made_pairs import make_pairs
from sremkit.data.pairs import MISSING, Pairs

OBJECTS = ("horse", "boat", "piano", "mountain", "bicycle")


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    made, _ = make_pairs(0.0, num_images=200, captions=2)
    texts = [f"a {OBJECTS[k % 5]} number{chr(97 + k % 26)}{chr(97 + k // 26)}" for k in range(len(made.texts))]
    return replace(made, texts=texts)


class Encoder:
    def __call__(self, captions):
        return np.ones((len(captions), 16), dtype=np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_so_many_captions_are_wrong_and_the_others_as_given(pairs: Pairs, kind: str) -> None:
    clean, noisy = (make_collection(pairs, kind, rate, size=100, seed=1, encoder=Encoder()) for rate in (0.0, 0.3))
    assert clean.rate == 0
    assert noisy.rate == pytest.approx(0.3, abs=0.02)
    same = [before == after for before, after in zip(clean.captions, noisy.captions, strict=True)]
    assert np.array_equal(~np.array(same), noisy.is_noisy)
    assert len(noisy.vectors.images) == len(noisy.vectors.texts) == 100


def test_a_shared_word_is_shared_and_an_absent_partner_is_absent(pairs: Pairs) -> None:
    options = {"size": 100, "seed": 2}
    before = make_collection(pairs, "shared word", 0.0, **options)
    after = make_collection(pairs, "shared word", 0.3, **options)
    shared = [content_words(before.captions[k]) & content_words(after.captions[k]) for k in range(100)]
    assert np.mean([bool(shared[k]) for k in np.flatnonzero(after.is_noisy)]) > 0.7  # the last find none that is left
    absent = make_collection(pairs, "partner absent", 0.3, **options)
    assert (absent.true_image[absent.is_noisy] == MISSING).all()
    assert (absent.true_image[~absent.is_noisy] != MISSING).all()


def test_the_table_counts_draws_that_hold() -> None:
    row = {"kind": "random", "pairs": 300, "captions": 1, "flagged": 10, "precision": 0.93, "auroc": 0.9}
    rows = [
        {**row, "in_interval": True, "can_tell": True},
        {**row, "in_interval": False, "can_tell": True, "precision": 0.9},
        {**row, "in_interval": False, "can_tell": False, "flagged": 0},
        {**row, "in_interval": True, "can_tell": False},
    ]
    figures = table(rows).splitlines()[-1].split()
    assert figures[-6:] == ["4", "0.50", "0.50", "0.75", "0.75", "0.900"]
