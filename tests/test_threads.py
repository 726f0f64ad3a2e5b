"""The number of CPU threads, with measurements in the place of a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from sremkit import threads
from sremkit.threads import MAX_RATIO, choose_threads, usable_threads


@pytest.mark.parametrize(
    ("all_threads", "one", "expected"),
    [(0.6, 1.0, 4), (1.0, 1.0, 4), (MAX_RATIO, 1.0, 4), (1.01 * MAX_RATIO, 1.0, 1), (20.0, 1.0, 1)],
)
def test_all_threads_are_used_unless_they_are_much_slower_than_one(
    all_threads: float, one: float, expected: int
) -> None:
    assert choose_threads(4, {4: all_threads, 1: one}.__getitem__) == expected


def test_threads_that_sleep_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def seconds(count: int) -> float:
        measured.append(count)
        return float(count)  # many threads are slow

    monkeypatch.setattr(threads, "_seconds_of_operations", seconds)
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert usable_threads(4) == 4
    assert measured == []
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert usable_threads(1) == 1
    assert measured == []
    assert usable_threads(4) == 1
    assert measured == [4, 1]
    assert torch.get_num_threads() == before  # measuring leaves it as it was


def test_operations_can_be_measured() -> None:
    before = torch.get_num_threads()
    try:
        assert threads._seconds_of_operations(1) > 0
    finally:
        torch.set_num_threads(before)


PRINT = "import os; print(os.environ.get('OMP_WAIT_POLICY'))"


@pytest.mark.parametrize(
    ("first", "given", "expected"),
    [
        ("import sremkit", {}, "PASSIVE"),
        ("import sremkit", {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),  # the user's choice
        ("import sremkit", {"GOMP_SPINCOUNT": "1000"}, "None"),
        ("import sys; sys.modules['torch'] = sys; import sremkit", {}, "None"),  # loaded before: without effect
    ],
)
def test_threads_sleep_if_sremkit_is_imported_before_torch(first: str, given: dict[str, str], expected: str) -> None:
    hidden = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | given
    done = subprocess.run(
        [sys.executable, "-c", f"{first}; {PRINT}"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == expected
