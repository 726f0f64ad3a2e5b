"""An audit under review: filters, orders, decisions and their progress."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from reviewed_audits import write_audit
from sremkit.review import reviewed_audit
from sremkit.review.reviewed_audit import Decided, Filter, Issue, Order, ReviewedAudit, Show

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_rows_are_filtered_by_every_issue_of_an_audit(tmp_path: Path) -> None:
    audit = write_audit(tmp_path / "data", 8)
    table = pq.read_table(audit / "pairs.parquet")
    values = {"duplicate_row_of": "p0", "boilerplate": "file name", "other_language": "de", "image_issue": "blank"}
    for row, (name, value) in enumerate(values.items()):
        table = table.append_column(name, pa.array([value if k == row else None for k in range(8)], pa.string()))
    table = table.append_column("repeated_caption", pa.array([None, 7] + [None] * 6, pa.int64()))
    table = table.append_column("conflicting_captions", pa.array([None] * 7 + [True]))
    pq.write_table(table, audit / "pairs.parquet")
    reviewed = ReviewedAudit(audit)
    found = {issue: reviewed.rows(Filter(issue=issue, order="row")).tolist() for issue in get_args(Issue)}
    assert found == {
        "any": list(range(8)),
        "same-caption": [],
        "same-image": [],
        "duplicate-row": [0],
        "repeated-caption": [1],
        "conflicting-captions": [7],
        "boilerplate": [1],
        "other-language": [2],
        "image-issue": [3],
        "problem": [],
    }


@pytest.mark.parametrize(
    ("name", "choices"), [("issue", Issue), ("show", Show), ("decided", Decided), ("order", Order)]
)
def test_the_page_offers_every_filter(name: str, choices: object) -> None:
    page = (Path(reviewed_audit.__file__).parent / "static" / "index.html").read_text(encoding="utf-8")
    offered = re.search(rf'<select name="{name}">(.*?)</select>', page, re.S)
    assert offered is not None
    assert set(re.findall(r'value="([^"]+)"', offered[1])) == set(get_args(choices))


@pytest.mark.parametrize("in_memory", [0, 100])
def test_details_are_the_same_from_memory_and_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(reviewed_audit, "MAX_IN_MEMORY", in_memory)
    audit = write_audit(tmp_path / "data", 8)
    table = pq.read_table(audit / "pairs.parquet")
    words = pa.array(["red <b>", *[None] * 7], pa.string())
    pq.write_table(table.append_column("unsupported_words", words), audit / "pairs.parquet")
    reviewed = ReviewedAudit(audit)
    first, last = reviewed.details([0, 7])
    assert (first["id"], first["text"], first["better_text"]) == ("p0", "caption 0", "better 0")
    assert first["remarks"] == ["words that captions of similar images do not have: red <b>"]
    assert (last["id"], last["better_text"], last["remarks"]) == ("p7", None, [])
    assert reviewed.image_name(1) == (1, "1.png")
    assert reviewed.image_name(0, better=True) == (1, "1.png")
    assert reviewed.rows(Filter(query="caption 5")).tolist() == [5]
