"""Steps of backbones that support CUDA graphs never wait for the device; references stand in for the kernels."""

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
from sremkit import ops
from sremkit.data.batch import Batch
from sremkit.methods import METHODS
from sremkit.models import BACKBONES, Matcher
from sremkit.models.layers.pooling import distinct_lengths
from sremkit.ops import cross_attention as attention_op
from sremkit.ops import graph_step, memory_update, node_pooling
from sremkit.ops import node_projection as projection_op
from sremkit.ops.packing import Packing
from sremkit.ops.triton import cross_attention, gru, node_projection
from sremkit.ops.triton import graph_step as graph_kernels
from sremkit.ops.triton import memory_update as memory_kernel
from sremkit.ops.triton import node_pooling as pooling_kernels

pytest.importorskip("triton", reason="the kernels need Triton")


def attention(
    affinity: Tensor, gram: Tensor, mask: Tensor, packing: Packing, *, scale: float, dtype=torch.float32
) -> Tensor:
    return attention_op.packed_reference(affinity, gram, mask, packing, scale=scale).to(dtype)


def projection(*parts: node_projection.Projected, dtype: torch.dtype) -> Tensor:
    return torch.cat([projection_op.node_projection_reference(*part) for part in parts], dim=1).to(dtype)


def scores(nodes: Tensor, weight: Tensor, bias: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
    return node_pooling.packed_scores_reference(nodes, weight, bias, packing), nodes


def states(inputs: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
    """Tensors of the right shapes only: the reference waits for the lengths, in second derivatives alone."""
    return torch.einsum("blkg,kgh->kblh", inputs + bias, weight)


@contextmanager
def references_for_kernels() -> Iterator[None]:
    """The path through the kernels, on a device that no kernel runs on."""
    with ExitStack() as stack:
        for module, name, reference in (
            (ops, "uses_triton", lambda x: True),
            (cross_attention, "packed_attention", attention),
            (node_projection, "packed_nodes", projection),
            (graph_kernels, "packed_self_attention", graph_step.packed_self_attention_reference),
            (graph_kernels, "relu_linear", graph_step.relu_linear_reference),
            (pooling_kernels, "packed_scores", scores),
            (pooling_kernels, "packed_sum", node_pooling.packed_sum_reference),
            (gru, "gru_kernel", states),
            (memory_kernel, "memory_update_kernel", memory_update.memory_update_reference),
        ):
            stack.enter_context(mock.patch.object(module, name, reference))
        stack.enter_context(stand_in_for_a_device())
        yield


def batch_of(name: str, *, max_total_words: int | None = 24, **sizes: tuple[int, int]) -> Batch:
    return replace(make_items(3, dtype=torch.float32, **sizes).batch(name), max_total_words=max_total_words)


def step(name: str, *, longest: int = 7, max_total_words: int | None = 24, **options) -> None:
    check_a_step(small_matcher(name, dtype=torch.float32, **options), longest=longest, max_total_words=max_total_words)


def check_a_step(matcher: Matcher, *, longest: int = 7, max_total_words: int | None = 24) -> None:
    matcher = matcher.to(DEVICE).train()
    batch = batch_of(matcher.networks()[0].name, words=(2, longest), max_total_words=max_total_words).to(DEVICE)
    with references_for_kernels(), refusing_to_wait():
        logits, losses = matcher.logits_and_losses(batch)
        logits = logits if logits.ndim == 2 else logits.sum(dim=0)  # of two networks
        (some_loss(logits) + sum(losses.values())).backward()
    assert all(p.grad is not None for p in matcher.parameters() if p.requires_grad)


CASES = [
    *[("imram", {"direction": direction}) for direction in ("text", "image")],
    ("imram", {"unit_memory": True, "recompute": False}),
    *[(name, {}) for name in sorted(BACKBONES) if BACKBONES[name].supports_cuda_graphs],
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_step_never_waits_for_the_device(name: str, options: dict) -> None:
    assert BACKBONES[name].supports_cuda_graphs
    step(name, **options)


@pytest.mark.parametrize("name", ["sgr", "imram", "dual"])
def test_steps_of_two_networks_never_wait(name: str) -> None:
    member = small_matcher(name)
    check_a_step(METHODS["ncr"].model(member.name, **member.options))


@pytest.mark.parametrize("name", ["imram", "scan-t2i", "scan-i2t"])
def test_captions_that_the_kernels_do_not_support_make_the_host_wait_and_are_known_before(name: str) -> None:
    with pytest.raises(HostWaitsError):
        step(name, longest=70)
    matcher = small_matcher(name)
    for longest, supported in ((7, True), (64, True), (65, False)):
        assert matcher.kernels_support(batch_of(name, words=(2, longest))) is supported
    assert not matcher.kernels_support(batch_of(name, regions=(1, 65)))


@pytest.mark.parametrize("name", ["imram", "saf"])
def test_texts_of_an_unknown_number_of_words_make_the_host_wait(name: str) -> None:
    with pytest.raises(HostWaitsError):
        step(name, max_total_words=None)
    assert not small_matcher(name).kernels_support(batch_of(name, max_total_words=None))


@pytest.mark.parametrize("name", ["sgr", "saf", "sgraf"])
def test_kernels_support_more_nodes_in_half_precision(name: str) -> None:
    matcher = small_matcher(name, dtype=torch.float32)
    long = batch_of(name, words=(2, 70))
    assert not matcher.kernels_support(long)  # 71 nodes
    assert matcher.kernels_support(batch_of(name, words=(2, 63)))
    with torch.autocast("cpu", torch.bfloat16):
        assert matcher.kernels_support(long)
        assert not matcher.kernels_support(batch_of(name, words=(2, 128)))
    assert not matcher.double().kernels_support(batch_of(name))  # no kernel computes in float64


def test_kernels_support_two_networks_as_they_support_one() -> None:
    member = small_matcher("imram")
    networks = METHODS["ncr"].model(member.name, **member.options)
    assert networks.kernels_support(batch_of("imram", words=(2, 64)))
    assert not networks.kernels_support(batch_of("imram", words=(2, 65)))


@pytest.mark.parametrize("width", [3, 9])
@pytest.mark.parametrize("may_sync", [True, False])
def test_distinct_lengths_include_all(width: int, may_sync: bool) -> None:
    lengths = torch.tensor([3, 0, 2, 3, 1])
    some, which = distinct_lengths(lengths, width, may_sync=may_sync)
    assert torch.equal(some[which], lengths)
    assert len(some) == (4 if may_sync or width == 3 else 5)  # 0 to 3, or one for each item
