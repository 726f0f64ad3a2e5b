"""An audit with encoders and a judge that take no time."""

from __future__ import annotations

import pytest

from fake_encoders import FakePictures, FakeSentences
from sremkit.audit import audit as audit_module
from sremkit.audit.preparation import Encoders
from stand_in_judge import StandInJudge


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> StandInJudge:
    """Stands in for the real judge, and the real encoders are replaced too."""
    stand_in = StandInJudge()
    monkeypatch.setattr(audit_module, "judge_by_cross_fitting", stand_in)
    monkeypatch.setattr(
        Encoders, "default", classmethod(lambda cls: Encoders(FakePictures(), FakeSentences()))
    )
    return stand_in
