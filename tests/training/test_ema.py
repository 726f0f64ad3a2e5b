"""The averaged weights: their formula, what is kept of them, and that a stopped run goes on with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from small_models import small_matcher
from sremkit.errors import UserError
from sremkit.models import build_matcher
from sremkit.training.diagnostics import StoppedError
from sremkit.training.run_folder import RunFolder
from sremkit.training.step import EMA
from training import tiny
from training.test_resume import StopAfter, assert_same


def test_the_average_by_hand() -> None:
    model = build_matcher("dual", image_dim=2, text_dim=2, hidden_size=2, embed_size=2)
    weight = next(model.parameters())
    weight.data.fill_(1.0)
    average = EMA(model, decay=0.9)
    followed = next(average.matcher.parameters())
    weight.data.fill_(2.0)
    average.update(model, step=1)  # d = 2/11: 2/11 · 1 + 9/11 · 2 = 20/11
    torch.testing.assert_close(followed.data, torch.full_like(followed, 20 / 11))
    average.update(model, step=1000)  # d = 0.9, for 1001/1010 is more: 0.9 · 20/11 + 0.1 · 2
    torch.testing.assert_close(followed.data, torch.full_like(followed, 0.9 * 20 / 11 + 0.2))
    assert not followed.requires_grad


def test_running_estimates_are_taken_over_as_they_are() -> None:
    """They are averages already; one that stayed at its start would spoil every evaluation."""
    model = small_matcher("saf", dtype=torch.float32)
    average = EMA(model, decay=0.9)
    running = [name for name, _ in model.named_buffers() if "running" in name]
    assert running
    for estimate in model.buffers():
        estimate.add_(3)
    average.update(model, step=1000)
    followed = dict(average.matcher.named_buffers())
    assert all(torch.equal(estimate, followed[name]) for name, estimate in model.named_buffers())
    model.get_buffer(running[0]).add_(1)
    assert not torch.equal(model.get_buffer(running[0]), followed[running[0]])  # a copy, not the same tensor


@pytest.mark.parametrize("decay", [1.0, -0.1, 2.0])
def test_a_decay_that_is_none_is_refused(decay: float) -> None:
    with pytest.raises(UserError, match="a decay between 0 and 1"):
        tiny.tiny_trainer(ema_decay=decay)


def test_the_average_is_what_is_validated_and_kept(tmp_path: Path) -> None:
    seen = []
    folder = RunFolder.create(tmp_path / "run", config="")
    trainer = tiny.tiny_trainer(folder, ema_decay=0.9, validate=lambda model: seen.append(model) or {"rsum": len(seen)})
    trainer.run()
    assert all(model is trainer.ema.matcher for model in seen)
    best, _ = folder.best()
    for name, tensor in trainer.ema.matcher.state_dict().items():
        assert torch.equal(best[f"model/{name}"], tensor)
        if tensor.is_floating_point() and tensor.numel() > 1:
            assert not torch.equal(tensor, trainer.matcher.state_dict()[name])


def test_a_stopped_run_goes_on_with_its_average(tmp_path: Path) -> None:
    whole = RunFolder.create(tmp_path / "whole", config="")
    tiny.tiny_trainer(whole, ema_decay=0.95).run()
    stopped = RunFolder.create(tmp_path / "stopped", config="")
    with pytest.raises(StoppedError):
        tiny.tiny_trainer(stopped, ema_decay=0.95, reporter=StopAfter(21)).run()
    tiny.tiny_trainer(stopped, ema_decay=0.95).run()
    assert_same(whole, stopped)
