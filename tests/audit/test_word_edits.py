"""A caption made wrong in one word gets the word that would stand there at another picture."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sremkit.audit.word_edits import edit_words
from sremkit.audit.word_slots import WordSlots
from sremkit.audit.word_witness import LocalView, WordGuesser, WordWitness
from sremkit.data.features import ArrayFeatures

COUNT = 4000
COLORS, KINDS = (4, 5, 6), (7, 8)
ALTERNATIVES = torch.zeros(9, 9, dtype=torch.bool)
for group in (COLORS, KINDS):
    for word in group:
        ALTERNATIVES[word, [other for other in group if other != word]] = True


class Made(WordGuesser):
    """At place 1 the same chances of colours everywhere, or the colour that the picture shows; at place 2 of kinds."""

    def __init__(self, colors: Tensor, kinds: Tensor, *, looks: bool = False) -> None:
        super().__init__(9, torch.zeros(1), torch.ones(1))
        self.colors, self.kinds, self.looks = colors, kinds, looks

    def forward(self, regions: Tensor, absent: Tensor, numbers: Tensor) -> Tensor:
        logits = torch.full((*numbers.shape, 9), -50.0)
        logits[:, 1, list(COLORS)] = self.colors.log()
        logits[:, 2, list(KINDS)] = self.kinds.log()
        if self.looks:  # the picture's only number is the colour that it shows
            logits[torch.arange(len(numbers)), 1, regions[:, 0, 0].long()] = 50.0
        return logits


def witness_of(
    guesser: WordGuesser, texts: Tensor, image_of_text: np.ndarray, shown: np.ndarray
) -> WordWitness:
    features = ArrayFeatures(shown.astype(np.float32)[:, None], name="pictures")
    return WordWitness(guesser.eval(), LocalView(features, WordSlots(texts, ALTERNATIVES), image_of_text))


def one_text_a_picture(colors: list[float], kinds: list[float]) -> WordWitness:
    """Every text says colour 4 and kind 7."""
    texts = torch.tensor([[1, 4, 7, 2, 0]]).repeat(COUNT, 1)
    guesser = Made(torch.tensor(colors), torch.tensor(kinds))
    return witness_of(guesser, texts, np.arange(COUNT), np.zeros(COUNT))


def test_a_place_is_chosen_by_how_open_it_is_and_a_word_by_its_chance() -> None:
    witness = one_text_a_picture([0.5, 0.1, 0.4], [0.75, 0.25])
    rows, edited = edit_words(witness, np.arange(COUNT), seed=0)
    assert len(np.unique(rows)) > 0.99 * COUNT
    changed = edited != witness.view.slots.numbers[torch.from_numpy(rows)]
    assert (changed.sum(dim=1) == 1).all()
    # Open are 1 - 0.5 at place 1 and 1 - 0.75 at place 2: two changes of three are at place 1. Of these
    # 0.1 / (0.1 + 0.4) say 5. With 4,000 texts such shares stray by less than 0.01.
    at_color = changed[:, 1]
    assert at_color.double().mean().item() == pytest.approx(2 / 3, abs=0.03)
    assert (edited[at_color, 1] == 5).double().mean().item() == pytest.approx(0.2, abs=0.03)
    assert set(edited[~at_color, 2].tolist()) == {8}


def test_a_word_without_a_choice_is_not_exchanged() -> None:
    witness = one_text_a_picture([0.5, 0.5, 0.0], [1.0, 0.0])
    _, edited = edit_words(witness, np.arange(COUNT), seed=0)
    assert len(edited) > 0.99 * COUNT
    assert (edited[:, 2] == 7).all()
    assert set(edited[:, 1].tolist()) == {5}


def test_texts_in_which_nothing_is_open_are_left_out() -> None:
    sure = one_text_a_picture([1.0, 0.0, 0.0], [1.0, 0.0])
    rows, edited = edit_words(sure, np.arange(COUNT), seed=0)
    assert len(rows) == 0
    assert edited.shape == (0, 5)
    rows, edited = edit_words(sure, np.zeros(0, dtype=np.int64), seed=0)
    assert len(rows) == len(edited) == 0


def test_it_is_another_picture_that_says_the_word() -> None:
    shown = np.random.default_rng(0).choice(COLORS, size=COUNT, p=[0.5, 0.3, 0.2])
    texts = torch.tensor([[1, 0, 7, 2, 0]]).repeat(COUNT, 1)
    texts[:, 1] = torch.from_numpy(shown)  # all are right
    guesser = Made(torch.ones(3) / 3, torch.tensor([1.0, 0.0]), looks=True)
    rows, edited = edit_words(witness_of(guesser, texts, np.arange(COUNT), shown), np.arange(COUNT), seed=0)
    # Another picture shows another colour with 1 - (0.25 + 0.09 + 0.04); where it shows the same, nothing is open.
    assert len(rows) / COUNT == pytest.approx(0.62, abs=0.03)
    assert (edited[:, 1] != torch.from_numpy(shown[rows])).all()
    # Of the texts that said 4, others show 5 and 6 as 3 to 2; the chances that are the same everywhere say 1 to 1.
    of_four = edited[torch.from_numpy(shown[rows] == 4), 1]
    assert (of_four == 5).double().mean().item() == pytest.approx(0.6, abs=0.05)


def test_texts_of_one_picture_have_no_other() -> None:
    texts = torch.tensor([[1, 4, 7, 2, 0]]).repeat(10, 1)
    guesser = Made(torch.ones(3) / 3, torch.ones(2) / 2)
    witness = witness_of(guesser, texts, np.zeros(10, dtype=np.int64), np.zeros(1))
    assert len(edit_words(witness, np.arange(10), seed=0)[0]) == 0


def test_the_same_seed_gives_the_same_edits_and_nothing_else_is_touched() -> None:
    witness = one_text_a_picture([0.5, 0.1, 0.4], [0.75, 0.25])
    before, state = witness.view.slots.numbers.clone(), torch.get_rng_state()
    first, again, other = (edit_words(witness, np.arange(50), seed=seed)[1] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert first.shape != other.shape or not torch.equal(first, other)
    assert torch.equal(witness.view.slots.numbers, before)
    assert torch.equal(torch.get_rng_state(), state)
