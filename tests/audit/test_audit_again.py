"""An audit that is called again: it goes on, notices what has changed, and does nothing twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from audit.small_tables import GOOD, audited, column, write_table
from fake_encoders import FakePictures, FakeSentences
from layouts import write_picture
from sremkit.audit import audit as audit_module
from sremkit.audit.audit import Audit
from sremkit.errors import UserError
from stand_in_judge import StandInJudge

pytest.importorskip("pyarrow")


@pytest.fixture
def interrupted(judge, monkeypatch) -> StandInJudge:
    stand_in = StandInJudge(interrupt=True)
    monkeypatch.setattr(audit_module, "judge_by_cross_fitting", stand_in)
    return stand_in


def test_a_stopped_audit_goes_on_without_extracting_again(tmp_path: Path, interrupted, monkeypatch) -> None:
    path = write_table(tmp_path / "data", GOOD)
    with pytest.raises(KeyboardInterrupt):
        audited(path, tmp_path / "out")
    assert not (tmp_path / "out" / "summary.json").exists()
    monkeypatch.setattr(FakePictures, "encode", None)  # a picture that were encoded again would be an error
    monkeypatch.setattr(FakeSentences, "encode", None)
    interrupted.interrupt = False
    audit = audited(path, tmp_path / "out")
    assert column(audit, "is_mismatch") == [False, True, True, False]
    assert not audit.was_complete


def test_a_finished_audit_is_not_made_again(tmp_path: Path, judge) -> None:
    path = write_table(tmp_path / "data", GOOD)
    first = audited(path, tmp_path / "out")
    again = audited(path, tmp_path / "out")
    assert (first.was_complete, again.was_complete) == (False, True)
    assert len(judge.judged) == 1
    assert again.get_issues() == first.get_issues()
    assert again.summary == first.summary


@pytest.mark.parametrize("change", ["caption", "picture", "more rows"])
def test_a_changed_input_is_noticed_and_judged_anew(tmp_path: Path, judge, change: str) -> None:
    path = write_table(tmp_path / "data", GOOD)
    audited(path, tmp_path / "out")
    if change == "caption":
        write_table(path.parent, [["a", "0.png", "now wrong", "mit"], *GOOD[1:]])
    elif change == "picture":
        write_picture(path.parent / "0.png", "orange")
        os.utime(path.parent / "0.png", ns=(1, 1))  # the clock may be too coarse for so quick a change
    else:
        write_table(path.parent, [*GOOD, ["e", "0.png", "another one", "mit"]])
    said: list[str] = []
    audit = Audit.from_csv(path, image="file", id="uid").find(tmp_path / "out", workers=0, say=said.append)
    assert len(judge.judged) == 2
    assert len(said) == 1
    assert "have changed since the audit" in said[0]
    assert column(audit, "is_mismatch")[0] == (change == "caption")


def test_a_change_in_another_column_is_taken_over_without_a_word(tmp_path: Path, judge, monkeypatch) -> None:
    path = write_table(tmp_path / "data", GOOD)
    audited(path, tmp_path / "out")
    write_table(path.parent, [[*GOOD[0][:3], "gpl"], *GOOD[1:]])
    for k in range(4):  # the pictures were written again too, but are the same to the second
        os.utime(path.parent / f"{k}.png", ns=(1, 1))
    audited(path, tmp_path / "out")
    write_table(path.parent, [[*GOOD[0][:3], "bsd"], *GOOD[1:]])
    for k in range(4):
        os.utime(path.parent / f"{k}.png", ns=(1, 1))
    monkeypatch.setattr(FakePictures, "encode", None)
    said: list[str] = []
    audit = Audit.from_csv(path, image="file", id="uid").find(tmp_path / "out", workers=0, say=said.append)
    assert said == []
    assert column(audit, "license")[0] == "bsd"


def test_another_choice_needs_no_features(tmp_path: Path, judge, monkeypatch) -> None:
    path = write_table(tmp_path / "data", GOOD)
    audited(path, tmp_path / "out")
    monkeypatch.setattr(FakePictures, "encode", None)
    audit = Audit.from_csv(path, image="file", id="uid").find(tmp_path / "out", workers=0, fraction=0.0)
    assert not any(column(audit, "is_mismatch"))


def test_a_folder_of_the_users_is_not_written_to(tmp_path: Path, judge) -> None:
    path = write_table(tmp_path / "data", GOOD)
    with pytest.raises(UserError, match=r"holds other files, such as 0\.png; name a new folder"):
        audited(path, path.parent)
    with pytest.raises(UserError, match="is a file; name a folder"):
        audited(path, path)
