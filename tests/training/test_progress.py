"""What a training says of itself while it runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sremkit.training import progress
from sremkit.training.progress import TrainingProgress


@pytest.mark.parametrize("first", [0, 40])
def test_the_time_left_is_reckoned_from_the_epochs_that_this_process_made(
    monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """A run of 50 epochs, from its beginning or resumed at epoch 40; each takes 30 seconds."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    with TrainingProgress(50, title="x", console=Console(file=out, width=200)) as told:
        for epoch in (first, first + 1):
            now[0] += 30.0
            told.epoch({"epoch": epoch, "warmup": False, "time/pairs_per_second": 1.0})
    endings = [line.split("about ")[1] for line in out.getvalue().splitlines()]
    # 49 and 48 epochs of half a minute are left, or 9 and 8: 270 seconds are told as minutes.
    assert endings == (["24 min left", "24 min left"] if first == 0 else ["4 min left", "4 min left"])
