"""Two computations at once: in turn where nothing is recorded, on two streams where a step is."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from small_models import make_items, small_matcher, some_loss
from sremkit.models import at_once as module
from sremkit.models.at_once import at_once
from sremkit.training.recorded import RecordedSteps


def test_without_a_recording_both_run_in_turn() -> None:
    story: list[str] = []

    def does(name: str) -> str:
        story.append(name)
        return name.upper()

    found = at_once(
        lambda: does("first"), lambda: does("second"), device=torch.device("cpu"), tensors_of=lambda found: []
    )
    assert found == ("FIRST", "SECOND")
    assert story == ["first", "second"]  # in this order, which random numbers are drawn in


def test_a_recording_forks_before_the_first_and_joins_after_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order of what streams are told, without a device."""
    story: list[str] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            story.append(f"{self.name} waits for {other.name}")

    here, aside = Stream("here"), Stream("aside")
    current = [here]

    @contextmanager
    def on(stream: Stream):
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(module, "_recording_on", lambda device: True)
    monkeypatch.setattr(module, "_stream_aside", lambda device: aside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", on)

    class Result:
        def record_stream(self, stream: Stream) -> None:
            story.append(f"its memory is read on {stream.name}")

    at_once(
        lambda: story.append(f"first on {current[-1].name}"),
        lambda: story.append(f"second on {current[-1].name}"),
        device=torch.device("cuda"),
        tensors_of=lambda found: [Result()],
    )
    assert story == [
        "aside waits for here",
        "first on aside",
        "second on here",
        "here waits for aside",
        "its memory is read on here",
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="streams need a CUDA device")
@pytest.mark.parametrize("name", ["saf", "vsrn", "dual"])
def test_a_recording_gives_the_gradients_of_a_step_as_usual(name: str) -> None:
    device = torch.device("cuda")
    matcher = small_matcher(name, dtype=torch.float32).to(device).train()
    for part in matcher.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    batch = make_items(6, dtype=torch.float32).batch(name).to(device)
    parameters = list(matcher.parameters())

    def step(given):
        logits, losses = matcher.logits_and_losses(given)
        loss = some_loss(logits) + sum(losses.values())
        return logits.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True)

    steps = RecordedSteps(step, device)
    found = [steps(batch) for _ in range(6)]  # as usual, recorded, replayed
    assert steps._recordings
    for later in found[1:]:
        for a, b in zip(found[0], later, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)
