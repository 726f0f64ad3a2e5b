"""Backbones that say that their steps can be recorded never wait for the device, with plain twins for kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from methods.replaying import DEVICE, HostWaitsError, refusing_to_wait, stand_in_for_a_device
from small_models import make_items, small_matcher, some_loss
from sremkit import kernels
from sremkit.data.batch import Batch
from sremkit.kernels import (
    memory_update,
    node_asking,
    node_linear,
    node_projection,
    node_sum,
    node_tells,
    recurrence,
    region_attention,
)
from sremkit.kernels.packing import Packing
from sremkit.kernels.plain_memory import plain_memory_update
from sremkit.methods import METHODS
from sremkit.models import BACKBONES, Matcher
from sremkit.models.pooling import few_lengths

pytest.importorskip("triton", reason="the kernels need Triton")


def attention(
    affinity: Tensor, gram: Tensor, mask: Tensor, packing: Packing, *, scale: float, dtype=torch.float32
) -> Tensor:
    return region_attention.plain_region_attention(affinity, gram, mask, packing, scale=scale).to(dtype)


def projection(*parts: node_projection.Projected, dtype: torch.dtype) -> Tensor:
    return torch.cat([node_projection.plain_node_projection(*part) for part in parts], dim=1).to(dtype)


def tells(nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
    return node_tells.plain_node_tells(nodes, weight, bias, packing), nodes


def asking(nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing, *, only_global: bool) -> Tensor:
    """Of the right shapes alone: the twin waits, which nothing but gradients of gradients minds."""
    asked = F.linear(nodes, weight, bias)
    return asked[:, : packing.num_texts] if only_global else asked


@contextmanager
def twins_for_kernels() -> Iterator[None]:
    """The way through the kernels, on a device that no kernel runs on."""
    with ExitStack() as stack:
        for module, name, twin in (
            (kernels, "uses_triton", lambda x: True),
            (region_attention, "region_attention", attention),
            (node_projection, "node_projection", projection),
            (node_asking, "node_asking", asking),
            (node_linear, "node_linear", node_linear.plain_node_linear),
            (node_tells, "node_tells", tells),
            (node_sum, "node_sum", node_sum.plain_node_sum),
            (recurrence, "recurrence", recurrence.plain_recurrence),
            (memory_update, "memory_update", plain_memory_update),
        ):
            stack.enter_context(mock.patch.object(module, name, twin))
        stack.enter_context(stand_in_for_a_device())
        yield


def batch_of(name: str, *, most_words: int | None = 24, **sizes: tuple[int, int]) -> Batch:
    return replace(make_items(3, dtype=torch.float32, **sizes).batch(name), most_words=most_words)


def step(name: str, *, longest: int = 7, most_words: int | None = 24, **options) -> None:
    check_a_step(small_matcher(name, dtype=torch.float32, **options), longest=longest, most_words=most_words)


def check_a_step(matcher: Matcher, *, longest: int = 7, most_words: int | None = 24) -> None:
    matcher = matcher.to(DEVICE).train()
    batch = batch_of(matcher.name, words=(2, longest), most_words=most_words).to(DEVICE)
    with twins_for_kernels(), refusing_to_wait():
        logits, losses = matcher.logits_and_losses(batch)
        logits = logits if logits.ndim == 2 else logits.sum(dim=0)  # of two networks
        (some_loss(logits) + sum(losses.values())).backward()
    assert all(p.grad is not None for p in matcher.parameters() if p.requires_grad)


CASES = [
    *[("imram", {"direction": direction}) for direction in ("text", "image", "full")],
    ("imram", {"unit_memory": True, "recompute": False}),
    *[(name, {}) for name in sorted(BACKBONES) if BACKBONES[name].recordable and name != "imram"],
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_step_never_waits_for_the_device(name: str, options: dict) -> None:
    assert BACKBONES[name].recordable
    step(name, **options)


@pytest.mark.parametrize("name", ["sgr", "imram", "dual"])
def test_steps_of_two_networks_never_wait_either(name: str) -> None:
    member = small_matcher(name)
    check_a_step(METHODS["ncr"].model(member.name, **member.options))


@pytest.mark.parametrize("name", ["imram", "scan-t2i", "scan-i2t"])
def test_captions_that_the_kernels_do_not_hold_are_waited_for_and_known_before(name: str) -> None:
    with pytest.raises(HostWaitsError):
        step(name, longest=70)
    matcher = small_matcher(name)
    for longest, held in ((7, True), (64, True), (65, False)):
        assert matcher.kernels_hold(batch_of(name, words=(2, longest))) is held
    assert not matcher.kernels_hold(batch_of(name, regions=(1, 65)))


@pytest.mark.parametrize("name", ["imram", "saf"])
def test_texts_whose_number_of_words_nobody_knows_are_waited_for(name: str) -> None:
    with pytest.raises(HostWaitsError):
        step(name, most_words=None)
    assert not small_matcher(name).kernels_hold(batch_of(name, most_words=None))


@pytest.mark.parametrize("name", ["sgr", "saf", "sgraf"])
def test_nodes_have_more_room_in_half_precision(name: str) -> None:
    matcher = small_matcher(name, dtype=torch.float32)
    long = batch_of(name, words=(2, 70))
    assert not matcher.kernels_hold(long)  # 71 nodes
    assert matcher.kernels_hold(batch_of(name, words=(2, 63)))
    with torch.autocast("cpu", torch.bfloat16):
        assert matcher.kernels_hold(long)
        assert not matcher.kernels_hold(batch_of(name, words=(2, 128)))
    assert not matcher.double().kernels_hold(batch_of(name))  # no kernel has such numbers


def test_of_two_networks_one_is_asked() -> None:
    member = small_matcher("imram")
    twins = METHODS["ncr"].model(member.name, **member.options)
    assert twins.kernels_hold(batch_of("imram", words=(2, 64)))
    assert not twins.kernels_hold(batch_of("imram", words=(2, 65)))


@pytest.mark.parametrize("width", [3, 9])
@pytest.mark.parametrize("may_wait", [True, False])
def test_few_lengths_hold_all_that_there_are(width: int, may_wait: bool) -> None:
    lengths = torch.tensor([3, 0, 2, 3, 1])
    some, which = few_lengths(lengths, width, may_wait=may_wait)
    assert torch.equal(some[which], lengths)
    assert len(some) == (4 if may_wait or width == 3 else 5)  # 0 to 3, or one for each item
