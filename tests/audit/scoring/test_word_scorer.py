"""The word scorer sees the image and the other words, never the word itself, and finds the wrong one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from made_pairs import PRECISE, SMALL
from sremkit.audit.embed import read_vectors, score_pairs
from sremkit.audit.scoring.negatives import RandomNegatives
from sremkit.audit.scoring.word_alternatives import WordAlternatives
from sremkit.audit.scoring.word_calibration import score_words
from sremkit.audit.scoring.word_scorer import (
    WordInputs,
    WordPredictor,
    WordScorer,
    train_word_scorer,
    word_inputs,
    word_log_probs,
)
from sremkit.data.features import ArrayFeatures
from sremkit.errors import DataError
from sremkit.evaluation import detection_metrics
from worded_pairs import worded_pairs

WORDY = replace(SMALL, dual_encoders=1, word_epochs=30)


@pytest.fixture
def predictor() -> WordPredictor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return WordPredictor(9, torch.zeros(5), torch.ones(5)).eval()


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    regions = torch.randn(2, 3, 5, generator=generator)
    return regions, torch.zeros(2, 3, dtype=torch.bool), torch.tensor([[1, 4, 5, 6, 2], [1, 7, 2, 0, 0]])


def test_a_word_is_predicted_without_being_seen(predictor, batch) -> None:
    regions, absent, tokens = batch
    other = tokens.clone()
    other[0, 2] = 8
    logits, changed = predictor(regions, absent, tokens)[0], predictor(regions, absent, other)[0]
    torch.testing.assert_close(logits[2], changed[2])
    for place in (1, 3):  # its neighbours are predicted from it
        assert (logits[place] - changed[place]).abs().max() > 1e-3


def test_padding_does_not_change_the_predictions(predictor, batch) -> None:
    regions, absent, tokens = batch
    together = predictor(regions, absent, tokens)[1, :3]
    alone = predictor(regions[1:], absent[1:], tokens[1:, :3])[0]
    torch.testing.assert_close(together, alone)


def test_absent_regions_have_no_effect_and_present_ones_do(predictor, batch) -> None:
    regions, absent, tokens = batch
    absent[0, 2] = True
    before = predictor(regions, absent, tokens)
    regions[0, 2] = 50.0
    torch.testing.assert_close(predictor(regions, absent, tokens), before)
    regions[0, 1] = 50.0
    assert (predictor(regions, absent, tokens) - before)[0].abs().max() > 1e-3


class Fixed(WordPredictor):
    """Gives the same logits whatever it sees."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__(logits.shape[-1], torch.zeros(5), torch.ones(5))
        self.logits = logits

    def forward(self, regions, absent, tokens):
        return self.logits.expand(len(tokens), -1, -1)[:, : tokens.shape[1]]


def fixed_inputs() -> WordInputs:
    alternatives = torch.zeros(7, 7, dtype=torch.bool)
    alternatives[4, 5] = alternatives[5, 4] = True  # 6 has none
    tokens = torch.tensor([[1, 4, 6, 5, 2, 0], [1, 6, 6, 6, 2, 0]])
    features = ArrayFeatures(np.zeros((2, 5), dtype=np.float32), name="images")
    return WordInputs(features, WordAlternatives(tokens, alternatives), np.array([0, 1]))


def test_likelihood_and_worst_word_in_a_worked_example() -> None:
    logits = torch.zeros(5, 7)
    logits[1, 4] = np.log(3)  # word 4 against word 5: P = 3/4
    logits[3, 4] = np.log(4)  # word 5 against word 4: P = 1/5
    logits[:, 6] = 9.0  # is no alternative, and must not enter
    likelihood, worst = WordScorer(Fixed(logits), fixed_inputs()).score(np.array([0, 1]), fixed_inputs().words.tokens)
    # log-likelihood: log 3/4 + log 1/5 = log 0.15; worst: -log(1/3 + 4) = -log 4.3333
    assert likelihood[0] == pytest.approx(np.log(0.15), rel=1e-5)
    assert worst[0] == pytest.approx(-np.log(13 / 3), rel=1e-5)
    assert np.isnan(likelihood[1])  # no word that could be another
    assert worst[1] == pytest.approx(-np.log(1e-6), rel=1e-5)  # and none that is wrong


def test_only_alternatives_compete_and_gradients_are_finite() -> None:
    logits = torch.zeros(5, 7, requires_grad=True)
    log_p, is_slot, _ = word_log_probs(Fixed(logits), fixed_inputs(), np.array([0]), fixed_inputs().words.tokens[:1])
    assert is_slot[0].tolist() == [False, True, False, True, False]
    torch.testing.assert_close(log_p[is_slot], torch.full((2,), -float(np.log(2))))
    (log_p * is_slot).sum().backward()
    assert logits.grad is not None
    assert logits.grad[1].tolist() == pytest.approx([0, 0, 0, 0, 0.5, -0.5, 0])  # 1 - P for the word, -P else


@pytest.fixture(scope="module")
def collection():
    return worded_pairs(400, shuffled=0.2, edited=0.2)


@pytest.fixture(scope="module")
def trained(collection):
    pairs, regions, *_ = collection
    inputs, note = word_inputs(read_vectors(pairs), pairs.texts, regions)
    assert inputs is not None
    assert note == ""
    rows = np.flatnonzero(pairs.image_of_text < 200)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    scorer = train_word_scorer(inputs, rows, WORDY, seed=0)
    assert torch.equal(before, torch.get_rng_state())  # the global generator is left alone
    return scorer, np.flatnonzero(pairs.image_of_text >= 200)


def test_a_single_wrong_word_is_found_at_images_never_seen(collection, trained) -> None:
    _, _, is_shuffled, is_edited = collection
    scorer, rows = trained
    likelihood, worst = scorer.score(
        scorer.inputs.image_of_text[rows], scorer.inputs.words.tokens[torch.from_numpy(rows)]
    )
    kept = ~is_shuffled[rows]
    assert detection_metrics(is_edited[rows][kept], worst[kept])["auroc"] > 0.95
    kept = ~is_edited[rows]
    assert detection_metrics(is_shuffled[rows][kept], likelihood[kept])["auroc"] > 0.95


def test_replaced_words_score_like_wrong_words(collection, trained) -> None:
    _, _, is_shuffled, is_edited = collection
    scorer, rows = trained
    empty = np.zeros(0, dtype=np.int64)
    scored = score_words(scorer, rows, RandomNegatives(empty, empty, empty), seed=0)
    assert len(scored.likelihood) == len(scored.worst) == len(rows)
    assert len(scored.null_likelihood) == 0
    right = ~(is_shuffled | is_edited)[rows]
    made_of_right = right[scored.edited_place]
    edited, wrong = scored.edited_worst[made_of_right], scored.worst[is_edited[rows]]
    assert np.median(edited) == pytest.approx(np.median(wrong), abs=1.0)
    assert np.median(scored.worst[right]) > np.median(edited) + 2


def test_scoring_words_finds_what_vectors_alone_do_not(collection) -> None:
    pairs, regions, is_shuffled, is_edited = collection
    is_wrong = is_shuffled | is_edited
    alone = score_pairs(pairs, replace(WORDY, word_epochs=0))
    scores = score_pairs(pairs, WORDY, regions=regions)
    kept = ~is_shuffled
    found, before = (detection_metrics(is_edited[kept], v.match_prob[kept])["auroc"] for v in (scores, alone))
    assert found > 0.95
    assert found > before + 0.1
    flagged = detection_metrics(is_wrong, scores.match_prob, verdict=scores.flag(PRECISE))
    assert flagged["precision"] > 0.9
    assert scores.flag(PRECISE)[is_edited].mean() > 0.5
    assert scores.noise_rate is not None
    assert scores.noise_rate.low <= is_wrong.mean() <= scores.noise_rate.high


def test_a_finished_fold_is_taken_from_its_folder_and_not_after_a_change(tmp_path) -> None:
    pairs, regions, *_ = worded_pairs(80, shuffled=0.1, edited=0.1)
    brief = replace(WORDY, word_epochs=1)
    stages: list[str] = []

    def run(of=regions, settings=brief):
        stages.clear()
        return score_pairs(pairs, settings, regions=of, folder=tmp_path, progress=lambda what, *_: stages.append(what))

    first = run()
    assert "training words, fold 1 of 2" in stages
    again = run()
    assert not any(what.startswith("training") for what in stages)
    assert np.array_equal(first.match_prob, again.match_prob)
    run(of=ArrayFeatures(regions.array + 1, name="others"))
    assert "training words, fold 1 of 2" in stages
    run(settings=replace(brief, word_epochs=0))
    assert "training, fold 1 of 2" in stages


def test_words_without_alternatives_are_not_scored_and_the_note_says_so() -> None:
    pairs, regions, *_ = worded_pairs(120, shuffled=0.2, edited=0.0)
    silent = replace(pairs, texts=["the same text"] * len(pairs))
    scores, alone = (score_pairs(silent, s, regions=regions) for s in (WORDY, replace(WORDY, word_epochs=0)))
    assert "no two words of these texts" in scores.note
    assert np.array_equal(scores.match_prob, alone.match_prob)


def test_regions_of_other_images_are_refused_in_words() -> None:
    pairs, regions, *_ = worded_pairs(60, shuffled=0.2, edited=0.0)
    fewer = ArrayFeatures(regions.array[:50], name="regions")
    with pytest.raises(DataError, match="regions of 60 images, but there are those of 50"):
        score_pairs(pairs, WORDY, regions=fewer)
