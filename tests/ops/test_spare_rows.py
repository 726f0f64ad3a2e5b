"""Packings with more rows than words, as they are where only the device knows the number of words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ops.kernel_cases import DEVICE
from small_models import Items, make_items, small_matcher, some_loss
from sremkit import ops
from sremkit.ops.packing import pack, pack_nodes, pad_nodes
from sremkit.ops.triton import graph_step, node_pooling
from sremkit.ops.triton.triton_utils import zero_spare_nodes, zero_spare_words

pytest.importorskip("triton", reason="the kernels need Triton")

MASK = torch.tensor([[True, True, False, False], [True, False, False, False], [True, True, True, False]])


@contextmanager
def nan_in_fresh_memory() -> Iterator[None]:
    """Uninitialised memory is NaN, so that reading it is noticed."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def test_with_the_number_of_words_the_packing_is_the_same() -> None:
    exact, given = pack(MASK), pack(MASK, max_total=6)
    assert torch.equal(given.cu_seqlens, exact.cu_seqlens)
    assert torch.equal(given.indices, exact.indices)
    assert given.max_seqlen == 4  # the width: the host does not know the longest caption's length
    assert torch.equal(given.node_rows()[:, :4], exact.node_rows())
    assert not given.node_mask()[:, 4].any()


def test_spare_rows_come_last_and_belong_to_no_caption() -> None:
    exact, given = pack(MASK), pack(MASK, max_total=9)
    assert torch.equal(given.cu_seqlens, exact.cu_seqlens)
    assert torch.equal(given.indices[:6], exact.indices)
    assert (given.num_words, given.num_nodes) == (9, 12)
    assert ((given.indices >= 0) & (given.indices < MASK.numel())).all()  # a valid row to read
    assert int(given.node_rows().max()) == 3 + 5  # the last word's row
    nodes = torch.arange(1.0, 25.0).view(1, 12, 2)
    assert torch.equal(pad_nodes(nodes, given)[:, :, :4], pad_nodes(nodes[:, :9], exact))
    again = pack_nodes(pad_nodes(nodes, given), given)
    assert torch.equal(again[:, :9], nodes[:, :9])
    assert (again[:, 9:] == 0).all()


def test_a_caption_without_words_takes_no_row() -> None:
    mask = torch.tensor([[False, False], [True, True], [False, False], [True, False]])
    given = pack(mask, max_total=5)
    assert given.cu_seqlens.tolist() == [0, 0, 2, 2, 3]
    assert given.indices[:3].tolist() == [2, 3, 6]


@pytest.mark.parametrize("rows", [9, 10, 31, 32, 33, 64, 70, 150])
def test_all_spare_rows_are_zeroed(rows: int) -> None:
    packing = pack(MASK.to(DEVICE), max_total=rows - 3)  # 3 global nodes and 6 words: spare rows begin at row 9
    wide, narrow = torch.full((2, rows, 5), 7.0, device=DEVICE), torch.full((1, rows, 1), 7.0, device=DEVICE)
    zero_spare_nodes(packing, wide, narrow)
    for nodes in (wide, narrow):
        assert (nodes[:, :9] == 7).all()
        assert (nodes[:, 9:] == 0).all()


@pytest.mark.parametrize("max_total", [29, 40, 70])
def test_spare_rows_may_begin_where_a_block_does(max_total: int) -> None:
    mask = torch.ones(3, 10, dtype=torch.bool)
    mask[0, 9] = False  # 29 words and 3 global nodes: 32 rows, as many as a program takes
    nodes = torch.full((2, 3 + max_total, 3), 7.0, device=DEVICE)
    zero_spare_nodes(pack(mask.to(DEVICE), max_total=max_total), nodes)
    assert (nodes[:, :32] == 7).all()
    assert (nodes[:, 32:] == 0).all()


@pytest.mark.parametrize("words", [6, 7, 22, 23, 60])
def test_all_spare_words_are_zeroed(words: int) -> None:
    packing = pack(MASK.to(DEVICE), max_total=words)  # 6 words of three captions
    many, few = torch.full((5, 13, words), 7.0, device=DEVICE), torch.full((1, 1, words), 7.0, device=DEVICE)
    zero_spare_words(packing, many, few)
    for values in (many, few):
        assert (values[..., :6] == 7).all()
        assert (values[..., 6:] == 0).all()


def step(name: str, items: Items, most: int | None, *, dtype: torch.dtype, backend: str) -> dict[str, Tensor]:
    """Logits, gradients and running estimates after a step in training mode, in float64."""
    matcher = small_matcher(name).to(DEVICE, dtype).train()
    batch = replace(items.batch(name), max_total_words=most).to(DEVICE)
    with ops.use(backend):
        logits = matcher(replace(batch, images=batch.images.to(dtype)))
        some_loss(logits).backward()
    found = {"logits": logits, **{key: p.grad for key, p in matcher.named_parameters()}}
    return {key: t.detach().double() for key, t in {**found, **dict(matcher.named_buffers())}.items()}


def difference(found: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """The largest, as a share of each tensor's largest number, or of 0.01 if that is more."""
    assert found.keys() == right.keys()
    shares = [(found[key] - right[key]).abs().max() / right[key].abs().max().clamp_min(0.01) for key in right]
    return torch.stack(shares).max().item()  # a NaN is the largest of all


@pytest.mark.parametrize("name", ["sgr", "saf", "scan-t2i", "imram"])
def test_spare_rows_have_no_influence_on_logits_and_gradients(name: str) -> None:
    items = make_items(4)
    words = sum(len(caption) for caption in items.captions)
    right = step(name, items, None, dtype=torch.float64, backend="plain")
    with nan_in_fresh_memory():
        exact = step(name, items, None, dtype=torch.float32, backend="triton")
        for most in (words, words + 1, words + 45):
            found = step(name, items, most, dtype=torch.float32, backend="triton")
            assert difference(found, exact) < 1e-5, most
            assert difference(found, right) < 1e-4, most


@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_spare_rows_that_are_not_zeroed_would_be_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    items = make_items(4)
    for module in (node_pooling, graph_step):
        monkeypatch.setattr(module, "zero_spare_nodes", lambda *_: None)
    exact = step(name, items, None, dtype=torch.float64, backend="plain")
    with nan_in_fresh_memory():
        found = step(name, items, 60, dtype=torch.float32, backend="triton")
    assert not difference(found, exact) < 1e-4
