"""Encoding a batch: images, then texts outside a CUDA graph; on two streams while a graph is captured."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from small_models import make_items, small_matcher, some_loss
from sremkit.models import Matcher
from sremkit.models import matcher as module
from sremkit.training.cuda_graphs import GraphedSteps

BATCH = SimpleNamespace(pair_id=torch.arange(2))


class Noting(Matcher):
    """Calls `note` instead of encoding; its encoded images hold one tensor, `result`."""

    def __init__(self, note, result=None) -> None:
        super().__init__()
        self.note, self.result = note, result

    def encode_images(self, batch):
        self.note("images")
        return SimpleNamespace(_tensors=lambda: {"pooled": self.result})

    def encode_texts(self, batch):
        self.note("texts")
        return "texts"


def test_outside_a_graph_images_are_encoded_before_texts() -> None:
    calls: list[str] = []
    _, texts = Noting(calls.append).encode(BATCH)
    assert texts == "texts"
    assert calls == ["images", "texts"]  # in this order, which random numbers are drawn in


def test_a_capture_forks_before_the_images_and_joins_after_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the calls, without a device."""
    calls: list[str] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            calls.append(f"{self.name} waits for {other.name}")

    main, side = Stream("main"), Stream("side")
    current = [main]

    @contextmanager
    def on(stream: Stream):
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(module, "_is_capturing", lambda device: True)
    monkeypatch.setattr(module, "_side_stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", on)

    class Result:
        def record_stream(self, stream: Stream) -> None:
            calls.append(f"its memory is read on {stream.name}")

    Noting(lambda what: calls.append(f"{what} on {current[-1].name}"), Result()).encode(BATCH)
    assert calls == [
        "side waits for main",
        "images on side",
        "texts on main",
        "main waits for side",
        "its memory is read on main",
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="streams need a CUDA device")
@pytest.mark.parametrize("name", ["saf", "vsrn", "dual"])
def test_a_cuda_graph_gives_the_gradients_of_an_eager_step(name: str) -> None:
    device = torch.device("cuda")
    matcher = small_matcher(name, dtype=torch.float32).to(device).train()
    for part in matcher.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    batch = make_items(6, dtype=torch.float32).batch(name)
    # As batches of a training know it; else the number of words is read from the device, which a capture forbids.
    batch = replace(batch, max_total_words=int(batch.word_mask.sum())).to(device)
    parameters = list(matcher.parameters())

    def step(given):
        logits, losses = matcher.logits_and_losses(given)
        loss = some_loss(logits) + sum(losses.values())
        return logits.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True)

    steps = GraphedSteps(step, device)
    found = [steps(batch) for _ in range(6)]  # eager, captured, replayed
    assert steps._graphs
    for later in found[1:]:
        for a, b in zip(found[0], later, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)
