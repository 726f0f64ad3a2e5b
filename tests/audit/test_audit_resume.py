"""An audit that is run again continues, detects changes, and repeats no work."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from audit.small_tables import GOOD, audited, column, write_table
from fake_encoders import FakeImages, FakeSentences
from layouts import write_image
from sremkit.audit import audit as audit_module
from sremkit.audit.audit import Audit
from sremkit.audit.export import export
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.errors import UserError
from sremkit.io import read_json, write_json
from stand_in_scorer import StandInScorer

pytest.importorskip("pyarrow")


@pytest.fixture
def interrupted(scorer, monkeypatch) -> StandInScorer:
    stand_in = StandInScorer(interrupt=True)
    monkeypatch.setattr(audit_module, "score_pairs", stand_in)
    return stand_in


def test_an_interrupted_audit_continues_without_extracting_again(tmp_path: Path, interrupted, monkeypatch) -> None:
    path = write_table(tmp_path / "data", GOOD)
    with pytest.raises(KeyboardInterrupt):
        audited(path, tmp_path / "out")
    assert not (tmp_path / "out" / "summary.json").exists()
    monkeypatch.setattr(FakeImages, "encode", None)  # an image that were encoded again would be an error
    monkeypatch.setattr(FakeSentences, "encode", None)
    interrupted.interrupt = False
    audit = audited(path, tmp_path / "out")
    assert column(audit, "is_mismatch") == [False, True, True, False]
    assert not audit.was_complete


def test_a_finished_audit_is_not_made_again(tmp_path: Path, scorer) -> None:
    path = write_table(tmp_path / "data", GOOD)
    first = audited(path, tmp_path / "out")
    again = audited(path, tmp_path / "out")
    assert (first.was_complete, again.was_complete) == (False, True)
    assert len(scorer.scored) == 1
    assert again.get_issues() == first.get_issues()
    assert again.summary == first.summary


@pytest.mark.parametrize(("words", "is_complete"), [(False, True), (True, False)])
def test_an_audit_in_which_an_earlier_version_scored_words_is_made_again(
    tmp_path: Path, scorer, words: bool, is_complete: bool
) -> None:
    path = write_table(tmp_path / "data", GOOD)
    audited(path, tmp_path / "out")
    summary = read_json(tmp_path / "out" / "summary.json")
    write_json(tmp_path / "out" / "summary.json", {**summary, "words": words})
    assert audited(path, tmp_path / "out").was_complete == is_complete


@pytest.mark.parametrize("change", ["caption", "image", "more rows"])
def test_a_changed_input_is_detected_and_scored_again(tmp_path: Path, scorer, change: str) -> None:
    path = write_table(tmp_path / "data", GOOD)
    audited(path, tmp_path / "out")
    if change == "caption":
        write_table(path.parent, [["a", "0.png", "now wrong", "mit"], *GOOD[1:]])
    elif change == "image":
        write_image(path.parent / "0.png", "orange")
        os.utime(path.parent / "0.png", ns=(1, 1))  # the clock may be too coarse for so quick a change
    else:
        write_table(path.parent, [*GOOD, ["e", "0.png", "another one", "mit"]])
    messages: list[str] = []
    audit = Audit.from_csv(path, image="file", id="uid").find(tmp_path / "out", workers=0, notify=messages.append)
    assert len(scorer.scored) == 2
    assert len(messages) == 1
    assert "have changed since the audit" in messages[0]
    assert column(audit, "is_mismatch")[0] == (change == "caption")


def test_a_change_in_another_column_is_taken_over_without_a_word(tmp_path: Path, scorer, monkeypatch) -> None:
    path = write_table(tmp_path / "data", GOOD)
    audited(path, tmp_path / "out")
    write_table(path.parent, [[*GOOD[0][:3], "gpl"], *GOOD[1:]])
    for k in range(4):  # the images were written again too, but are the same to the second
        os.utime(path.parent / f"{k}.png", ns=(1, 1))
    audited(path, tmp_path / "out")
    write_table(path.parent, [[*GOOD[0][:3], "bsd"], *GOOD[1:]])
    for k in range(4):
        os.utime(path.parent / f"{k}.png", ns=(1, 1))
    monkeypatch.setattr(FakeImages, "encode", None)
    messages: list[str] = []
    audit = Audit.from_csv(path, image="file", id="uid").find(tmp_path / "out", workers=0, notify=messages.append)
    assert messages == []
    assert column(audit, "license")[0] == "bsd"


def test_another_cutoff_needs_no_features(tmp_path: Path, scorer, monkeypatch) -> None:
    path = write_table(tmp_path / "data", GOOD)
    audited(path, tmp_path / "out")
    monkeypatch.setattr(FakeImages, "encode", None)
    audit = Audit.from_csv(path, image="file", id="uid").find(tmp_path / "out", workers=0, fraction=0.0)
    assert not any(column(audit, "is_mismatch"))


def test_a_folder_of_the_users_is_not_written_to(tmp_path: Path, scorer) -> None:
    path = write_table(tmp_path / "data", GOOD)
    with pytest.raises(UserError, match=r"holds other files, such as 0\.png; name a new folder"):
        audited(path, path.parent)
    with pytest.raises(UserError, match="is a file; name a folder"):
        audited(path, path)


def test_a_complete_audit_of_an_earlier_version_is_complete(tmp_path: Path, scorer) -> None:
    path, out = write_table(tmp_path / "data", GOOD), tmp_path / "out"
    audited(path, out)
    summary = json.loads((out / "summary.json").read_text())
    summary["judged"], summary["choice"] = summary.pop("scored"), summary.pop("cutoff")
    (out / "summary.json").write_text(json.dumps(summary))
    again = audited(path, out)
    assert again.was_complete
    assert again.summary["scored"] == 4
    assert again.report().is_file()
    assert export(out, tmp_path / "keep.txt", cutoff=CutoffRule(precision=0.9)).written == 2


def test_the_folder_of_a_sharded_audit_of_an_earlier_version_is_refused(tmp_path: Path, scorer) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "audit.json").write_text('{"by_shard": true, "key": "x", "shards": 3}')
    with pytest.raises(UserError, match="made with --sharded"):
        audited(write_table(tmp_path / "data", GOOD), tmp_path / "out")
