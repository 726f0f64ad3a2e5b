"""Imported by processes of the fault tests: encoders and scorer of `srem` are small stand-ins in them."""

from __future__ import annotations

from fake_encoders import FakeImages, FakeSentences
from sremkit.audit import audit
from sremkit.audit.embed import Encoders
from sremkit.features import extract
from stand_in_scorer import StandInScorer

SECONDS = 0.01  # of an image
audit.score_pairs = StandInScorer()  # type: ignore[assignment]
Encoders.default = classmethod(lambda cls: Encoders(FakeImages(seconds=SECONDS), FakeSentences()))  # type: ignore[method-assign, assignment]
extract.EfficientNetEncoder = lambda: FakeImages(seconds=SECONDS)  # type: ignore[assignment, misc]
extract.MiniLMEncoder = FakeSentences  # type: ignore[assignment, misc]
extract.extract_features.__kwdefaults__["save_seconds"] = 0.0
