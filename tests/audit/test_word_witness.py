"""A witness for words sees the picture and the other words, never the word itself, and finds the wrong one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from made_pairs import SMALL
from sremkit.audit.judging import judge
from sremkit.audit.surely_wrong import WrongPairs
from sremkit.audit.word_judging import judge_words
from sremkit.audit.word_slots import WordSlots
from sremkit.audit.word_witness import (
    LocalView,
    WordGuesser,
    WordWitness,
    guessed,
    look_at_words,
    train_word_witness,
)
from sremkit.data.features import ArrayFeatures
from sremkit.errors import DataError
from sremkit.evaluation import detection_metrics
from worded_pairs import worded_pairs

WORDY = replace(SMALL, trained_witnesses=1, word_epochs=30)


@pytest.fixture
def guesser() -> WordGuesser:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return WordGuesser(9, torch.zeros(5), torch.ones(5)).eval()


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    regions = torch.randn(2, 3, 5, generator=generator)
    return regions, torch.zeros(2, 3, dtype=torch.bool), torch.tensor([[1, 4, 5, 6, 2], [1, 7, 2, 0, 0]])


def test_a_word_is_guessed_without_being_seen_itself(guesser, inputs) -> None:
    regions, absent, numbers = inputs
    other = numbers.clone()
    other[0, 2] = 8
    logits, changed = guesser(regions, absent, numbers)[0], guesser(regions, absent, other)[0]
    torch.testing.assert_close(logits[2], changed[2])
    for place in (1, 3):  # its neighbours, who are guessed from it, notice
        assert (logits[place] - changed[place]).abs().max() > 1e-3


def test_a_text_is_guessed_alike_beside_longer_ones(guesser, inputs) -> None:
    regions, absent, numbers = inputs
    together = guesser(regions, absent, numbers)[1, :3]
    alone = guesser(regions[1:], absent[1:], numbers[1:, :3])[0]
    torch.testing.assert_close(together, alone)


def test_absent_regions_are_not_seen_and_present_ones_are(guesser, inputs) -> None:
    regions, absent, numbers = inputs
    absent[0, 2] = True
    before = guesser(regions, absent, numbers)
    regions[0, 2] = 50.0
    torch.testing.assert_close(guesser(regions, absent, numbers), before)
    regions[0, 1] = 50.0
    assert (guesser(regions, absent, numbers) - before)[0].abs().max() > 1e-3


class Fixed(WordGuesser):
    """Gives the same logits whatever it sees."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__(logits.shape[-1], torch.zeros(5), torch.ones(5))
        self.logits = logits

    def forward(self, regions, absent, numbers):
        return self.logits.expand(len(numbers), -1, -1)[:, : numbers.shape[1]]


def fixed_view() -> LocalView:
    alternatives = torch.zeros(7, 7, dtype=torch.bool)
    alternatives[4, 5] = alternatives[5, 4] = True  # 6 has none
    numbers = torch.tensor([[1, 4, 6, 5, 2, 0], [1, 6, 6, 6, 2, 0]])
    features = ArrayFeatures(np.zeros((2, 5), dtype=np.float32), name="images")
    return LocalView(features, WordSlots(numbers, alternatives), np.array([0, 1]))


def test_fit_and_worst_word_in_a_worked_example() -> None:
    logits = torch.zeros(5, 7)
    logits[1, 4] = np.log(3)  # word 4 against word 5: P = 3/4
    logits[3, 4] = np.log(4)  # word 5 against word 4: P = 1/5
    logits[:, 6] = 9.0  # is nobody's alternative, and must not enter
    spoken = WordWitness(Fixed(logits), fixed_view()).hear(np.array([0, 1]), fixed_view().slots.numbers)
    # fit: log 3/4 + log 1/5 = log 0.15; worst: -log(1/3 + 4) = -log 4.3333
    assert spoken.fit[0] == pytest.approx(np.log(0.15), rel=1e-5)
    assert spoken.worst[0] == pytest.approx(-np.log(13 / 3), rel=1e-5)
    assert np.isnan(spoken.fit[1])  # no word that could be another
    assert spoken.worst[1] == pytest.approx(-np.log(1e-6), rel=1e-5)  # and none that is wrong


def test_only_alternatives_compete_and_gradients_are_finite() -> None:
    logits = torch.zeros(5, 7, requires_grad=True)
    log_p, is_slot = guessed(Fixed(logits), fixed_view(), np.array([0]), fixed_view().slots.numbers[:1])
    assert is_slot[0].tolist() == [False, True, False, True, False]
    torch.testing.assert_close(log_p[is_slot], torch.full((2,), -float(np.log(2))))
    (log_p * is_slot).sum().backward()
    assert logits.grad is not None
    assert logits.grad[1].tolist() == pytest.approx([0, 0, 0, 0, 0.5, -0.5, 0])  # 1 - P for the word, -P else


@pytest.fixture(scope="module")
def collection():
    return worded_pairs(400, shuffled=0.2, edited=0.2)


@pytest.fixture(scope="module")
def heard(collection):
    pairs, regions, *_ = collection
    view, note = look_at_words(pairs, WORDY, regions)
    assert view is not None
    assert note == ""
    rows = np.flatnonzero(pairs.image_of_text < 200)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    witness = train_word_witness(view, rows, WORDY, seed=0)
    assert torch.equal(before, torch.get_rng_state())  # the global generator is left alone
    return witness, np.flatnonzero(pairs.image_of_text >= 200)


def test_a_single_wrong_word_is_found_at_pictures_never_seen(collection, heard) -> None:
    _, _, is_shuffled, is_edited = collection
    witness, rows = heard
    spoken = witness.hear(
        witness.view.image_of_text[rows], witness.view.slots.numbers[torch.from_numpy(rows)]
    )
    told = ~is_shuffled[rows]
    assert detection_metrics(is_edited[rows][told], spoken.worst[told])["auroc"] > 0.95
    told = ~is_edited[rows]
    assert detection_metrics(is_shuffled[rows][told], spoken.fit[told])["auroc"] > 0.95


def test_edited_texts_stand_where_captions_wrong_in_a_word_stand(collection, heard) -> None:
    _, _, is_shuffled, is_edited = collection
    witness, rows = heard
    nobody = np.zeros(0, dtype=np.int64)
    judged = judge_words(witness, rows, WrongPairs(nobody, nobody, nobody), seed=0)
    assert len(judged.fit) == len(judged.worst) == len(rows)
    assert len(judged.wrong_fit) == 0
    right = ~(is_shuffled | is_edited)[rows]
    made_of_right = right[judged.edited_place]
    edited, wrong = judged.edited_worst[made_of_right], judged.worst[is_edited[rows]]
    assert np.median(edited) == pytest.approx(np.median(wrong), abs=1.0)
    assert np.median(judged.worst[right]) > np.median(edited) + 2


def test_judging_words_finds_what_vectors_alone_do_not(collection) -> None:
    pairs, regions, is_shuffled, is_edited = collection
    is_wrong = is_shuffled | is_edited
    alone = judge(pairs, replace(WORDY, word_epochs=0))
    verdicts = judge(pairs, WORDY, regions=regions)
    told = ~is_shuffled
    found, before = (
        detection_metrics(is_edited[told], v.mismatch_score[told])["auroc"] for v in (verdicts, alone)
    )
    assert found > 0.95
    assert found > before + 0.1
    called = detection_metrics(is_wrong, verdicts.mismatch_score, verdict=verdicts.is_mismatch)
    assert called["precision"] > 0.9
    assert verdicts.is_mismatch[is_edited].mean() > 0.5
    assert verdicts.noise_rate is not None
    assert verdicts.noise_rate.low <= is_wrong.mean() <= verdicts.noise_rate.high


def test_a_finished_fold_is_taken_from_its_folder_and_not_after_a_change(tmp_path) -> None:
    pairs, regions, *_ = worded_pairs(80, shuffled=0.1, edited=0.1)
    brief = replace(WORDY, word_epochs=1)
    told: list[str] = []

    def judged(of=regions, settings=brief):
        told.clear()
        return judge(
            pairs, settings, regions=of, folder=tmp_path, progress=lambda what, *_: told.append(what)
        )

    first = judged()
    assert "learning words for part 1 of 2" in told
    again = judged()
    assert not any(what.startswith("learning") for what in told)
    assert np.array_equal(first.mismatch_score, again.mismatch_score)
    judged(of=ArrayFeatures(regions.array + 1, name="others"))
    assert "learning words for part 1 of 2" in told
    judged(settings=replace(brief, word_epochs=0))
    assert "learning for part 1 of 2" in told


def test_words_without_alternatives_are_not_judged_and_it_says_so() -> None:
    pairs, regions, *_ = worded_pairs(120, shuffled=0.2, edited=0.0)
    silent = replace(pairs, texts=["the same text"] * len(pairs))
    verdicts, alone = (judge(silent, s, regions=regions) for s in (WORDY, replace(WORDY, word_epochs=0)))
    assert "no two words of these texts" in verdicts.note
    assert np.array_equal(verdicts.mismatch_score, alone.mismatch_score)


def test_regions_of_other_images_are_refused_in_words() -> None:
    pairs, regions, *_ = worded_pairs(60, shuffled=0.2, edited=0.0)
    fewer = ArrayFeatures(regions.array[:50], name="regions")
    with pytest.raises(DataError, match="regions of 60 images, but there are those of 50"):
        judge(pairs, WORDY, regions=fewer)
