"""The rows of a large audit that its page shows."""

from __future__ import annotations

import numpy as np
import pytest

from sremkit.audit.sharded.merge import Excerpt

pa = pytest.importorskip("pyarrow")


def test_an_excerpt_takes_every_kth_row_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sremkit.audit.sharded.merge.MAX_PAGE_ROWS", 10)
    whole = pa.table({"n": np.arange(103)})
    excerpt = Excerpt(103)  # every 11th
    start = 0
    for number, size in enumerate((40, 1, 5, 57)):
        excerpt.add(whole.slice(start, size), number, 0)
        start += size
    assert excerpt.table()["n"].to_pylist() == list(range(0, 103, 11))
    assert excerpt.places()[:5].tolist() == [[0, 0], [0, 11], [0, 22], [0, 33], [2, 3]]  # 44 is 40 + 1 + 3
