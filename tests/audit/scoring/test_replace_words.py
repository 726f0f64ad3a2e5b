"""A replaced word is the one that the model predicts for another image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sremkit.audit.scoring.word_alternatives import WordAlternatives
from sremkit.audit.scoring.word_scorer import WordInputs, WordPredictor, WordScorer, replace_words
from sremkit.data.features import ArrayFeatures

COUNT = 4000
COLORS, KINDS = (4, 5, 6), (7, 8)
ALTERNATIVES = torch.zeros(9, 9, dtype=torch.bool)
for group in (COLORS, KINDS):
    for word in group:
        ALTERNATIVES[word, [other for other in group if other != word]] = True


class Made(WordPredictor):
    """At place 1 the same chances of colours everywhere, or the colour that the image shows; at place 2 of kinds."""

    def __init__(self, colors: Tensor, kinds: Tensor, *, looks: bool = False) -> None:
        super().__init__(9, torch.zeros(1), torch.ones(1))
        self.colors, self.kinds, self.looks = colors, kinds, looks

    def forward(self, regions: Tensor, absent: Tensor, tokens: Tensor) -> Tensor:
        logits = torch.full((*tokens.shape, 9), -50.0)
        logits[:, 1, list(COLORS)] = self.colors.log()
        logits[:, 2, list(KINDS)] = self.kinds.log()
        if self.looks:  # the image's only number is the colour that it shows
            logits[torch.arange(len(tokens)), 1, regions[:, 0, 0].long()] = 50.0
        return logits


def scorer_of(predictor: WordPredictor, texts: Tensor, image_of_text: np.ndarray, shown: np.ndarray) -> WordScorer:
    features = ArrayFeatures(shown.astype(np.float32)[:, None], name="images")
    return WordScorer(predictor.eval(), WordInputs(features, WordAlternatives(texts, ALTERNATIVES), image_of_text))


def one_text_an_image(colors: list[float], kinds: list[float]) -> WordScorer:
    """Every text says colour 4 and kind 7."""
    texts = torch.tensor([[1, 4, 7, 2, 0]]).repeat(COUNT, 1)
    predictor = Made(torch.tensor(colors), torch.tensor(kinds))
    return scorer_of(predictor, texts, np.arange(COUNT), np.zeros(COUNT))


def test_a_place_is_chosen_by_how_open_it_is_and_a_word_by_its_chance() -> None:
    scorer = one_text_an_image([0.5, 0.1, 0.4], [0.75, 0.25])
    rows, edited = replace_words(scorer, np.arange(COUNT), seed=0)
    assert len(np.unique(rows)) > 0.99 * COUNT
    changed = edited != scorer.inputs.words.tokens[torch.from_numpy(rows)]
    assert (changed.sum(dim=1) == 1).all()
    # Open are 1 - 0.5 at place 1 and 1 - 0.75 at place 2: two changes of three are at place 1. Of these
    # 0.1 / (0.1 + 0.4) say 5. With 4,000 texts such shares stray by less than 0.01.
    at_color = changed[:, 1]
    assert at_color.double().mean().item() == pytest.approx(2 / 3, abs=0.03)
    assert (edited[at_color, 1] == 5).double().mean().item() == pytest.approx(0.2, abs=0.03)
    assert set(edited[~at_color, 2].tolist()) == {8}


def test_a_word_without_a_choice_is_not_exchanged() -> None:
    scorer = one_text_an_image([0.5, 0.5, 0.0], [1.0, 0.0])
    _, edited = replace_words(scorer, np.arange(COUNT), seed=0)
    assert len(edited) > 0.99 * COUNT
    assert (edited[:, 2] == 7).all()
    assert set(edited[:, 1].tolist()) == {5}


def test_texts_in_which_nothing_is_open_are_left_out() -> None:
    sure = one_text_an_image([1.0, 0.0, 0.0], [1.0, 0.0])
    rows, edited = replace_words(sure, np.arange(COUNT), seed=0)
    assert len(rows) == 0
    assert edited.shape == (0, 5)
    rows, edited = replace_words(sure, np.zeros(0, dtype=np.int64), seed=0)
    assert len(rows) == len(edited) == 0


def test_it_is_another_image_that_says_the_word() -> None:
    shown = np.random.default_rng(0).choice(COLORS, size=COUNT, p=[0.5, 0.3, 0.2])
    texts = torch.tensor([[1, 0, 7, 2, 0]]).repeat(COUNT, 1)
    texts[:, 1] = torch.from_numpy(shown)  # all are right
    predictor = Made(torch.ones(3) / 3, torch.tensor([1.0, 0.0]), looks=True)
    rows, edited = replace_words(scorer_of(predictor, texts, np.arange(COUNT), shown), np.arange(COUNT), seed=0)
    # Another image shows another colour with 1 - (0.25 + 0.09 + 0.04); where it shows the same, nothing is open.
    assert len(rows) / COUNT == pytest.approx(0.62, abs=0.03)
    assert (edited[:, 1] != torch.from_numpy(shown[rows])).all()
    # Of the texts that said 4, others show 5 and 6 as 3 to 2; the chances that are the same everywhere say 1 to 1.
    of_four = edited[torch.from_numpy(shown[rows] == 4), 1]
    assert (of_four == 5).double().mean().item() == pytest.approx(0.6, abs=0.05)


def test_texts_of_one_image_have_no_other() -> None:
    texts = torch.tensor([[1, 4, 7, 2, 0]]).repeat(10, 1)
    predictor = Made(torch.ones(3) / 3, torch.ones(2) / 2)
    scorer = scorer_of(predictor, texts, np.zeros(10, dtype=np.int64), np.zeros(1))
    assert len(replace_words(scorer, np.arange(10), seed=0)[0]) == 0


def test_the_same_seed_gives_the_same_edits_and_nothing_else_is_touched() -> None:
    scorer = one_text_an_image([0.5, 0.1, 0.4], [0.75, 0.25])
    before, state = scorer.inputs.words.tokens.clone(), torch.get_rng_state()
    first, again, other = (replace_words(scorer, np.arange(50), seed=seed)[1] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert first.shape != other.shape or not torch.equal(first, other)
    assert torch.equal(scorer.inputs.words.tokens, before)
    assert torch.equal(torch.get_rng_state(), state)
