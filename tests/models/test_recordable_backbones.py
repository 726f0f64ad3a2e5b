"""Backbones that say that their steps can be recorded never wait for the device, with plain twins for kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import Tensor

from methods.replaying import DEVICE, HostWaitsError, refusing_to_wait, stand_in_for_a_device
from small_models import make_items, small_matcher, some_loss
from sremkit import kernels
from sremkit.kernels import memory_update, recurrence, region_attention
from sremkit.kernels.plain_memory import plain_memory_update
from sremkit.models import BACKBONES
from sremkit.models.pooling import few_lengths

pytest.importorskip("triton", reason="the kernels need Triton")


def plain_attention(affinity: Tensor, gram: Tensor, mask: Tensor, packing, *, scale: float) -> Tensor:
    return region_attention.plain_region_attention(affinity, gram, mask, packing, scale=scale)


@contextmanager
def twins_for_kernels() -> Iterator[None]:
    """The way through the kernels, on a device that no kernel runs on."""
    with ExitStack() as stack:
        for module, name, twin in (
            (kernels, "uses_triton", lambda x: True),
            (region_attention, "region_attention", plain_attention),
            (recurrence, "recurrence", recurrence.plain_recurrence),
            (memory_update, "memory_update", plain_memory_update),
        ):
            stack.enter_context(mock.patch.object(module, name, twin))
        stack.enter_context(stand_in_for_a_device())
        yield


def step(name: str, *, longest: int = 7, most_words: int | None = 24, **options) -> None:
    matcher = small_matcher(name, dtype=torch.float32, **options).to(DEVICE).train()
    batch = make_items(3, words=(2, longest), dtype=torch.float32).batch(name)
    batch = replace(batch, most_words=most_words).to(DEVICE)
    with twins_for_kernels(), refusing_to_wait():
        logits, losses = matcher.logits_and_losses(batch)
        (some_loss(logits) + sum(losses.values())).backward()
    assert all(p.grad is not None for p in matcher.parameters() if p.requires_grad)


CASES = [
    *[("imram", {"direction": direction}) for direction in ("text", "image", "full")],
    ("imram", {"unit_memory": True, "recompute": False}),
    *[(name, {}) for name in ("scan-t2i", "scan-i2t", "vsrn", "vse-infty", "dual")],
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_step_never_waits_for_the_device(name: str, options: dict) -> None:
    assert BACKBONES[name].recordable
    step(name, **options)


@pytest.mark.parametrize("name", ["imram", "scan-t2i", "scan-i2t"])
def test_captions_that_the_kernels_do_not_hold_are_waited_for_and_known_before(name: str) -> None:
    with pytest.raises(HostWaitsError):
        step(name, longest=70)
    matcher = small_matcher(name)
    for longest, held in ((7, True), (64, True), (65, False)):
        assert matcher.kernels_hold(make_items(3, words=(2, longest)).batch(name)) is held
    assert not matcher.kernels_hold(make_items(3, regions=(1, 65)).batch(name))


def test_texts_whose_number_of_words_nobody_knows_are_waited_for() -> None:
    with pytest.raises(HostWaitsError):
        step("imram", most_words=None)


@pytest.mark.parametrize("name", ["sgr", "saf", "sgraf"])
def test_nodes_have_more_room_in_half_precision(name: str) -> None:
    matcher = small_matcher(name, dtype=torch.float32)
    long = make_items(3, words=(2, 70)).batch(name)
    assert not matcher.kernels_hold(long)  # 71 nodes
    assert matcher.kernels_hold(make_items(3, words=(2, 63)).batch(name))
    with torch.autocast("cpu", torch.bfloat16):
        assert matcher.kernels_hold(long)
        assert not matcher.kernels_hold(make_items(3, words=(2, 128)).batch(name))


@pytest.mark.parametrize("width", [3, 9])
@pytest.mark.parametrize("may_wait", [True, False])
def test_few_lengths_hold_all_that_there_are(width: int, may_wait: bool) -> None:
    lengths = torch.tensor([3, 0, 2, 3, 1])
    some, which = few_lengths(lengths, width, may_wait=may_wait)
    assert torch.equal(some[which], lengths)
    assert len(some) == (4 if may_wait or width == 3 else 5)  # 0 to 3, or one for each item
