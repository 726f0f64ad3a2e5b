"""Kernels over nodes: values by hand, more rows than a program takes, and mistakes that have to be noticed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ops.kernel_cases import CASES, DEVICE, Case, assert_near, random, value_and_gradients
from ops.test_kernels import FUNCTIONS
from ops.test_spare_rows import nan_in_fresh_memory
from oracles import packed as oracle
from sremkit.ops.packing import pack
from sremkit.ops.triton import graph_step
from sremkit.ops.triton.graph_step import packed_self_attention
from sremkit.ops.triton.node_pooling import packed_scores

pytest.importorskip("triton", reason="the kernels need Triton")

#: 21 nodes for each of 13 images: 273 rows where a program adds up 256, and 13 images where it takes 4.
MANY = Case([6, 3, 9], images=13, regions=1, width=16, sim=5)


def tensor(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32, device=DEVICE)


@pytest.mark.parametrize("name", ["relu_linear", "self_attention", "global_self_attention", "node_scores_and_sum"])
def test_sums_over_all_nodes_may_take_several_programs(name: str) -> None:
    inputs, ways = FUNCTIONS[name](MANY)
    right = value_and_gradients(ways["reference"], inputs, torch.float64)
    assert_near(value_and_gradients(ways["kernel"], inputs, torch.float32), right, 1e-5)


def test_a_layer_with_relu_by_hand() -> None:
    # W x + b = (1·1 + 1·(-2) + 0, 2·1 - 1·(-2) - 1) = (-1, 3), of which ReLU leaves (0, 3).
    # An upstream of (5, 1) becomes (0, 1): by b (0, 1), by x the second row of W, by W x in its second row.
    x, weight, bias = tensor([1, -2]), tensor([1, 1], [2, -1]), tensor(0, -1)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    out = graph_step.relu_linear(*leaves)
    assert out.tolist() == [[0.0, 3.0]]
    by_x, by_weight, by_bias = torch.autograd.grad(out, leaves, tensor([5, 1]))
    assert by_x.tolist() == [[2.0, -1.0]]
    assert by_weight.tolist() == [[0.0, 0.0], [1.0, -2.0]]
    assert by_bias.tolist() == [0.0, 1.0]


def test_node_scores_by_hand() -> None:
    # Captions of one and two words. f · x + b with f = (10, 1), b = 0.5; rows: two global nodes, then the words.
    packing = pack(torch.tensor([[True, False], [True, True]], device=DEVICE))
    nodes = tensor([[1, 2], [3, 4], [5, 6], [7, 8], [0, 1]])
    scores, same = packed_scores(nodes, tensor([10, 1]), tensor(0.5), packing)
    assert scores.tolist() == [[[12.5, 56.5, 0.0], [34.5, 78.5, 1.5]]]
    assert torch.equal(same, nodes)
    assert same.data_ptr() == nodes.data_ptr()  # returned, not copied


def test_returned_nodes_have_their_own_gradient() -> None:
    inputs, _ = FUNCTIONS["node_scores"](MANY)
    nodes, weight, bias = (x.float().requires_grad_() for x in inputs)
    upstream = random(*nodes.shape, seed=21).float()
    _scores, same = packed_scores(nodes, weight, bias, MANY.packing)
    by_nodes, by_weight = torch.autograd.grad(same, [nodes, weight], upstream, allow_unused=True)
    assert torch.equal(by_nodes, upstream)
    assert by_weight is None


def test_spare_rows_of_nan_are_never_read() -> None:
    inputs, ways = FUNCTIONS["node_scores_and_sum"](MANY)
    right = value_and_gradients(ways["kernel"], inputs, torch.float32)
    spare = torch.full((MANY.images, 4, MANY.sim), torch.nan, device=DEVICE)
    found = value_and_gradients(ways["kernel"], [torch.cat([inputs[0], spare], dim=1), *inputs[1:]], torch.float32)
    found[1] = found[1][:, : MANY.num_nodes]
    for x, y in zip(found, right, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("name", ["self_attention", "node_scores", "node_sum", "unit_attention"])
def test_all_elements_are_written_next_to_a_long_caption(name: str) -> None:
    inputs, ways = FUNCTIONS[name](CASES["long"])
    right = value_and_gradients(ways["reference"], inputs, torch.float64)
    with nan_in_fresh_memory():
        assert_near(value_and_gradients(ways["kernel"], inputs, torch.float32), right, 1e-5)


def test_a_backward_pass_without_relus_mask_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, ways = FUNCTIONS["relu_linear"](MANY)
    right = value_and_gradients(ways["oracle"], inputs, torch.float64)
    monkeypatch.setattr(graph_step, "gate", lambda g, _: (g.flatten(0, -2), g.flatten(0, -2).sum(dim=0)))
    value, *gradients = value_and_gradients(ways["kernel"], inputs, torch.float32)
    assert_near([value], right[:1], 1e-5)
    for found, expected in zip(gradients, right[1:], strict=True):
        with pytest.raises(AssertionError):
            assert_near([found], [expected], 1e-1)


@pytest.mark.parametrize("only_global", [False, True])
def test_queries_by_the_transposed_weight_would_be_noticed(only_global: bool) -> None:
    (nodes, weight, bias), _ways = FUNCTIONS["global_self_attention" if only_global else "self_attention"](MANY)
    wrong = oracle.node_self_attention(nodes, weight.T, bias, MANY.lengths, only_global=only_global)
    found = packed_self_attention(nodes.float(), weight.float(), bias.float(), MANY.packing, only_global=only_global)
    with pytest.raises(AssertionError):
        assert_near([found], [wrong], 1e-2)


def test_the_bias_gradient_is_summed_in_float32() -> None:
    # 3,000 ones are 3,000; summed in half precision they stop at 2,048.
    ones = torch.ones(3000, 3, dtype=torch.float16, device=DEVICE)
    gated, sums = graph_step.gate(ones, ones)
    assert torch.equal(gated, ones)
    assert sums.tolist() == [3000.0] * 3
