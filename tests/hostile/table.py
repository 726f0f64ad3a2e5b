"""The table of hostile inputs by group. A defect that is found becomes a row here, so that the table only grows."""

from __future__ import annotations

from hostile import arrays, numbers, run_folders, texts
from hostile.harness import Case

GROUPS: dict[str, list[Case]] = {
    "run folders": list(run_folders.cases()),
    "numbers": list(numbers.cases()),
    "text": list(texts.cases()),
    "arrays and audits": list(arrays.cases()),
}
