"""Zero-shot similarity of one joint space as a scorer: alone on few pairs, in the ensemble on more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sremkit.audit.embed import Encoders
from sremkit.audit.scoring import fold_model
from sremkit.audit.scoring.cross_fit import CrossFitScorer
from sremkit.audit.scoring.dual_encoder import DualEncoderScorer
from sremkit.audit.scoring.fold_model import train_scorers
from sremkit.audit.scoring.ridge_cca import RootCCA
from sremkit.audit.scoring.types import PairVectors, ScoringSettings
from sremkit.audit.scoring.zero_shot import ZeroShot
from sremkit.evaluation.detection import detection_metrics
from sremkit.features.encoders.efficientnet import EfficientNetEncoder
from sremkit.features.encoders.minilm import MiniLMEncoder


def joint_vectors(count: int = 300, *, wrong: float = 0.3) -> tuple[PairVectors, np.ndarray]:
    """Pairs in one space, as a pretrained model gives them: matches are near each other; some images are shuffled."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(count, 16))
    texts = images + 1.0 * rng.normal(size=(count, 16))
    image_of_text = np.arange(count)
    shuffled = rng.permutation(count)[: round(wrong * count)]
    image_of_text[shuffled] = np.roll(image_of_text[shuffled], 1)
    vectors = PairVectors(
        torch.from_numpy(images).float(),
        torch.from_numpy(texts).float(),
        torch.from_numpy(image_of_text),
        np.ones(count, dtype=bool),
    )
    return vectors, image_of_text != np.arange(count)


def test_a_few_hundred_pairs_are_scored_without_training(tmp_path: Path, monkeypatch) -> None:
    def trained(*_: object, **__: object) -> None:
        raise AssertionError("a model was trained")

    monkeypatch.setattr(fold_model, "train_dual_encoder", trained)
    monkeypatch.setattr(fold_model, "fit_root_cca", trained)
    vectors, is_wrong = joint_vectors()
    scorer = CrossFitScorer(ScoringSettings(zero_shot=True, negatives=2000), folder=tmp_path)
    scores = scorer.fit_score(vectors)
    assert scores.is_scored.all()
    assert detection_metrics(is_wrong, scores.match_prob)["auroc"] > 0.9
    assert scores.noise_rate is not None
    assert abs(scores.noise_rate.estimate - 0.3) < 0.12
    # What was kept scores the same pairs as before.
    scorer.save(tmp_path / "scorer", {}, with_models=False)
    loaded, _ = CrossFitScorer.load(tmp_path / "scorer")
    assert [type(s) for s in loaded.models[0].scorers] == [ZeroShot]
    np.testing.assert_allclose(loaded.score(vectors).match_prob, scorer.score(vectors).match_prob, rtol=1e-5, atol=1e-6)
    with pytest.raises(AssertionError, match="a model was trained"):  # without a joint space it has to be
        CrossFitScorer(ScoringSettings(negatives=2000)).fit_score(vectors)


def test_with_more_pairs_it_joins_the_ensemble(monkeypatch) -> None:
    monkeypatch.setattr(fold_model, "MIN_FITTED_PAIRS", 50)
    vectors, _ = joint_vectors(120)
    settings = ScoringSettings(
        zero_shot=True, epochs=1, warmup_epochs=1, hidden_size=8, embed_size=8, dual_encoders=1, batch_size=60
    )
    scorers = train_scorers(vectors, np.arange(100), settings, seed=0)
    assert [type(s) for s in scorers] == [RootCCA, DualEncoderScorer, ZeroShot]
    without = train_scorers(vectors, np.arange(100), replace(settings, zero_shot=False), seed=0)
    assert [type(s) for s in without] == [RootCCA, DualEncoderScorer]


def test_vectors_are_scaled_to_unit_length_and_not_turned() -> None:
    vectors = torch.tensor([[3.0, 4.0]])
    torch.testing.assert_close(ZeroShot().encode_images(vectors), torch.tensor([[0.6, 0.8]]))
    torch.testing.assert_close(ZeroShot().encode_texts(2 * vectors), torch.tensor([[0.6, 0.8]]))


def test_only_vectors_of_one_pretrained_model_share_a_space() -> None:
    one = Encoders(EfficientNetEncoder(), MiniLMEncoder(), folder="clip")
    assert one.share_a_space(["pooled", "sentences"])
    assert not one.share_a_space(["sentences"])  # the images came with features of another model
    assert not Encoders(EfficientNetEncoder(), MiniLMEncoder()).share_a_space(["pooled", "sentences"])
