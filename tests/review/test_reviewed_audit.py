"""An audit under review: filters, orders, decisions and their progress."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from reviewed_audits import write_audit
from sremkit.review import reviewed_audit
from sremkit.review.reviewed_audit import Filter, Issue, ReviewedAudit

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


def test_the_page_offers_every_issue() -> None:
    page = (Path(reviewed_audit.__file__).parent / "static" / "index.html").read_text(encoding="utf-8")
    offered = re.search(r'<select name="issue">(.*?)</select>', page, re.S)
    assert offered is not None
    assert set(re.findall(r'value="([^"]+)"', offered[1])) == set(get_args(Issue))
