"""An audit with encoders and a scorer that take no time."""

from __future__ import annotations

import pytest

from fake_encoders import FakeImages, FakeSentences
from sremkit.audit import audit as audit_module
from sremkit.audit.embed import Encoders
from stand_in_scorer import StandInScorer


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> StandInScorer:
    """Replaces the real scorer; the real encoders are replaced too."""
    stand_in = StandInScorer()
    monkeypatch.setattr(audit_module, "score_pairs", stand_in)
    monkeypatch.setattr(Encoders, "default", classmethod(lambda cls: Encoders(FakeImages(), FakeSentences())))
    return stand_in
