"""Interchangeable words are found from their neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from oracles import neighbor_similarity as oracle
from sremkit.audit.scoring.word_alternatives import MAX_WORDS, find_alternatives, neighbor_similarity
from sremkit.data.vocabulary import Vocabulary

COLORS, KINDS = ("red", "blue", "green"), ("dog", "cat", "cow")
TEXTS = [f"a {color} {kind} is seen" for color in COLORS for kind in KINDS for _ in range(3)]


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary.build(TEXTS, min_count=5)


def number(vocabulary: Vocabulary, word: str) -> int:
    return vocabulary.words.index(word)


def test_neighbor_similarity_in_a_worked_example() -> None:
    # Word 4 stands after 6 and before 7 (three times) or 8 (once), word 5 after 6 and before 7:
    # on the left 1, on the right √(3/4 · 1) = 0.8660254.
    tokens = np.array([[6, 4, 7], [6, 4, 7], [6, 4, 7], [6, 4, 8], [6, 5, 7], [6, 5, 7]])
    assert neighbor_similarity(tokens, 9)[4, 5] == pytest.approx(0.8660254, rel=1e-6)


def test_neighbor_similarity_agree_with_counting_text_by_text() -> None:
    tokens = np.random.default_rng(0).integers(4, 9, size=(40, 7))
    found = neighbor_similarity(tokens, 9)
    for first in range(4, 9):
        for second in range(4, 9):
            expected = 0.0 if first == second else oracle.similarity(tokens.tolist(), first, second)
            assert found[first, second] == pytest.approx(expected, rel=1e-5)  # float32


def test_colors_are_alternatives_of_colors_and_of_nothing_else(vocabulary: Vocabulary) -> None:
    words = find_alternatives(TEXTS)
    assert words is not None
    for group in (COLORS, KINDS):
        for word in group:
            others = {vocabulary.words[k] for k in words.alternatives[number(vocabulary, word)].nonzero()[:, 0]}
            assert others == set(group) - {word}
    assert not words.is_slot[number(vocabulary, "is")]


@pytest.mark.parametrize("texts", [["every word once"], ["the same text again"] * 20, ["", ""]])
def test_without_alternatives_there_are_no_slots(texts: list[str]) -> None:
    assert find_alternatives(texts) is None


def test_a_huge_text_is_cut_and_keeps_its_end() -> None:
    words = find_alternatives([*TEXTS, "a red dog " * 500])
    assert words is not None
    assert words.tokens.shape[1] == MAX_WORDS + 1
    assert words.tokens[-1, MAX_WORDS - 1] == 2  # <end>
    assert words.tokens[-1, MAX_WORDS] == 0
