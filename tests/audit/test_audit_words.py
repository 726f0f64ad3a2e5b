"""An audit that also looks at single words: asked for, never by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audit.small_tables import GOOD, audited, write_table
from sremkit.audit.audit import Audit
from sremkit.audit.scoring.types import WORD_EPOCHS, ScoringSettings
from sremkit.errors import DataError, UserError

pytest.importorskip("pyarrow")


def test_words_are_scored_only_if_requested(tmp_path: Path, scorer) -> None:
    path = write_table(tmp_path / "data", GOOD)
    audited(path, tmp_path / "out")
    assert not scorer.settings.word_epochs
    again = Audit.from_csv(path, image="file", id="uid")
    with_words = again.find(tmp_path / "out", words=True, workers=0)
    assert scorer.settings.word_epochs
    assert not with_words.was_complete  # what was there had not looked at words
    assert with_words.summary["words"]
    assert not audited(path, tmp_path / "out").was_complete
    assert len(scorer.scored) == 3


@pytest.mark.parametrize(("words", "epochs"), [(False, 0), (True, WORD_EPOCHS)])
def test_seed_and_words_reach_the_scorer(words: bool, epochs: int, tmp_path: Path, scorer) -> None:
    path = write_table(tmp_path / "data", GOOD)
    Audit.from_csv(path, image="file", id="uid").find(tmp_path / "out", seed=3, words=words, workers=0)
    assert scorer.settings == ScoringSettings(seed=3, word_epochs=epochs)


def test_vectors_without_captions_have_no_words(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 4))
    with pytest.raises(UserError, match="--words needs captions"):
        Audit.from_embeddings(vectors, vectors).find(tmp_path / "out", words=True)


def test_a_negative_number_of_passes_is_refused_in_words() -> None:
    with pytest.raises(DataError, match="word_epochs must be 0 or more, got -1"):
        replace(ScoringSettings(), word_epochs=-1)
