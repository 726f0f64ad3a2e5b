"""What a training says of itself while it runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sremkit.training import reporters
from sremkit.training.reporters import ConsoleReporter


@pytest.mark.parametrize("first", [0, 40])
def test_the_time_left_is_reckoned_from_the_epochs_that_this_process_made(
    monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """A run of 50 epochs, from its beginning or resumed at epoch 40; each takes 30 seconds."""
    now = [1000.0]
    monkeypatch.setattr(reporters.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    with ConsoleReporter(50, title="x", console=Console(file=out, width=200)) as told:
        for epoch in (first, first + 1):
            now[0] += 30.0
            told.epoch({"epoch": epoch, "warmup": False, "time/pairs_per_second": 1.0})
    endings = [line.split("about ")[1] for line in out.getvalue().splitlines()]
    # 49 and 48 epochs of half a minute are left, or 9 and 8: 270 seconds are told as minutes.
    assert endings == (["24 min left", "24 min left"] if first == 0 else ["4 min left", "4 min left"])


def test_each_column_is_explained_once_before_its_first_line() -> None:
    out = io.StringIO()
    warmup = {"epoch": 0, "warmup": True, "time/pairs_per_second": 9.0, "loss": 1.0, "complementary_i2t": 0.5}
    warmup |= {"complementary_t2i": 0.25, "val/rsum": 80.0}
    later = {**warmup, "epoch": 1, "warmup": False, "selected_i2t": 0.5, "selected_t2i": 0.5}
    later |= {"own_i2t": 1.0, "own_t2i": 2.0, "selected_wrong": 0.1, "noisy_gradient_ratio": 0.1}
    with ConsoleReporter(3, title="x", explain=True, console=Console(file=out, width=200)) as reporter:
        for row in (warmup, later, {**later, "epoch": 2}):
            reporter.epoch(row)
    lines = out.getvalue().splitlines()
    first, second, third = (k for k, line in enumerate(lines) if line.startswith("x epoch"))
    explained = [[line.strip().split(":")[0] for line in lines[a:b]] for a, b in ((0, first), (first + 1, second))]
    assert explained[0] == ["loss", "complementary", "val R_sum", "warm-up", "pairs/s"]
    assert explained[1] == ["own", "selected", "wrong among selected", "noisy gradients"]
    assert third == second + 1
    assert "  own: part of the loss, image to text/text to image" in lines
    assert "  pairs/s: training pairs per second" in lines
