"""Words that could stand in each other's place are found."""

from __future__ import annotations

import numpy as np
import pytest

from oracles import alike_words
from sremkit.audit.word_slots import LONGEST, alike_neighbors, find_slots
from sremkit.data.vocabulary import Vocabulary

COLORS, KINDS = ("red", "blue", "green"), ("dog", "cat", "cow")
TEXTS = [f"a {color} {kind} is seen" for color in COLORS for kind in KINDS for _ in range(3)]


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary.build(TEXTS, min_count=5)


def number(vocabulary: Vocabulary, word: str) -> int:
    return vocabulary.words.index(word)


def test_alike_neighbors_in_a_worked_example() -> None:
    # Word 4 stands after 6 and before 7 (three times) or 8 (once), word 5 after 6 and before 7:
    # on the left 1, on the right √(3/4 · 1) = 0.8660254.
    numbers = np.array([[6, 4, 7], [6, 4, 7], [6, 4, 7], [6, 4, 8], [6, 5, 7], [6, 5, 7]])
    assert alike_neighbors(numbers, 9)[4, 5] == pytest.approx(0.8660254, rel=1e-6)


def test_alike_neighbors_agree_with_counting_text_by_text() -> None:
    numbers = np.random.default_rng(0).integers(4, 9, size=(40, 7))
    found = alike_neighbors(numbers, 9)
    for first in range(4, 9):
        for second in range(4, 9):
            expected = 0.0 if first == second else alike_words.alike(numbers.tolist(), first, second)
            assert found[first, second] == pytest.approx(expected, rel=1e-5)  # float32


def test_colors_are_alternatives_of_colors_and_of_nothing_else(vocabulary: Vocabulary) -> None:
    slots = find_slots(TEXTS)
    assert slots is not None
    for group in (COLORS, KINDS):
        for word in group:
            others = {
                vocabulary.words[k] for k in slots.alternatives[number(vocabulary, word)].nonzero()[:, 0]
            }
            assert others == set(group) - {word}
    assert not slots.is_slot[number(vocabulary, "is")]


@pytest.mark.parametrize("texts", [["every word once"], ["the same text again"] * 20, ["", ""]])
def test_without_alternatives_there_are_no_slots(texts: list[str]) -> None:
    assert find_slots(texts) is None


def test_a_huge_text_is_cut_and_keeps_its_end() -> None:
    slots = find_slots([*TEXTS, "a red dog " * 500])
    assert slots is not None
    assert slots.numbers.shape[1] == LONGEST + 1
    assert slots.numbers[-1, LONGEST - 1] == 2  # <end>
    assert slots.numbers[-1, LONGEST] == 0
