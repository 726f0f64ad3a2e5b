"""The table of hostile inputs by group. A defect that is found becomes a row here, so that the table only grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hostile import arrays, components, models, numbers, requests, results, rooms, run_folders, texts
from hostile.harness import Case
from hostile.requests import RequestCase

AnyCase = Case | RequestCase
GROUPS: Mapping[str, Sequence[AnyCase]] = {
    "run folders": list(run_folders.cases()),
    "numbers": list(numbers.cases()),
    "text": list(texts.cases()),
    "arrays and audits": list(arrays.cases()),
    "decisions, indexes": list(results.cases()),
    "models and pixels": list(models.cases()),
    "requests": list(requests.cases()),
    "other commands": list(rooms.cases()),
    "plugins, frames": list(components.cases()),
}
