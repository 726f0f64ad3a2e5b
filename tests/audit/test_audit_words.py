"""An audit that also looks at single words: asked for, never by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audit.small_tables import GOOD, audited, write_table
from sremkit.audit import stages
from sremkit.audit.audit import Audit
from sremkit.audit.judging_settings import WORD_EPOCHS, JudgingSettings
from sremkit.errors import DataError, UserError

pytest.importorskip("pyarrow")


def test_words_are_judged_where_that_is_asked_for(tmp_path: Path, judge) -> None:
    path = write_table(tmp_path / "data", GOOD)
    audited(path, tmp_path / "out")
    assert not judge.words
    again = Audit.from_csv(path, image="file", id="uid")
    with_words = again.find(tmp_path / "out", words=True, workers=0)
    assert judge.words
    assert not with_words.was_complete  # what was there had not looked at words
    assert with_words.summary["words"]
    assert not audited(path, tmp_path / "out").was_complete
    assert len(judge.judged) == 3


@pytest.mark.parametrize(("words", "epochs"), [(False, 0), (True, WORD_EPOCHS)])
def test_the_judge_is_told_how_long_to_learn_words(
    words: bool, epochs: int, tmp_path: Path, monkeypatch
) -> None:
    heard: list[JudgingSettings] = []
    monkeypatch.setattr(stages, "judge", lambda pairs, settings, **options: heard.append(settings))
    stages.judge_by_cross_fitting(None, seed=3, folder=tmp_path, progress=None, words=words)
    assert heard == [JudgingSettings(seed=3, word_epochs=epochs)]


def test_vectors_without_captions_have_no_words(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 4))
    with pytest.raises(UserError, match="single words can only be judged where there are captions"):
        Audit.from_embeddings(vectors, vectors).find(tmp_path / "out", words=True)


def test_a_negative_number_of_passes_is_refused_in_words() -> None:
    with pytest.raises(DataError, match="word_epochs must be 0 or more, got -1"):
        replace(JudgingSettings(), word_epochs=-1)
