"""Linear layers over nodes: values by hand, more rows than a program takes, and mistakes that have to show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.kernel_cases import CASES, DEVICE, Case, assert_near, random, value_and_gradients
from kernels.test_kernels import FUNCTIONS
from kernels.test_spare_rows import rubbish_in_fresh_memory
from oracles import packed as oracle
from sremkit.kernels import node_asking as asking_module
from sremkit.kernels import node_linear as linear_module
from sremkit.kernels import node_tells as tells_module
from sremkit.kernels.packing import pack

pytest.importorskip("triton", reason="the kernels need Triton")

#: 21 nodes for each of 13 images: 273 rows where a program adds up 256, and 13 images where it takes 4.
MANY = Case([6, 3, 9], images=13, regions=1, width=16, sim=5)


def tensor(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32, device=DEVICE)


@pytest.mark.parametrize(
    "name", ["node_linear", "node_linear_relu", "node_asking", "global_asking", "node_tells_and_sum"]
)
def test_sums_over_all_nodes_may_take_several_programs(name: str) -> None:
    inputs, ways = FUNCTIONS[name](MANY)
    right = value_and_gradients(ways["plain"], inputs, torch.float64)
    assert_near(value_and_gradients(ways["kernel"], inputs, torch.float32), right, 1e-5)


def test_a_layer_with_relu_by_hand() -> None:
    # W x + b = (1·1 + 1·(-2) + 0, 2·1 - 1·(-2) - 1) = (-1, 3), of which ReLU leaves (0, 3).
    # An upstream of (5, 1) becomes (0, 1): by b (0, 1), by x the second row of W, by W x in its second row.
    x, weight, bias = tensor([1, -2]), tensor([1, 1], [2, -1]), tensor(0, -1)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    out = linear_module.node_linear(*leaves, relu=True)
    assert out.tolist() == [[0.0, 3.0]]
    by_x, by_weight, by_bias = torch.autograd.grad(out, leaves, tensor([5, 1]))
    assert by_x.tolist() == [[2.0, -1.0]]
    assert by_weight.tolist() == [[0.0, 0.0], [1.0, -2.0]]
    assert by_bias.tolist() == [0.0, 1.0]


def test_what_nodes_tell_by_hand() -> None:
    # Captions of one and two words. f · x + b with f = (10, 1), b = 0.5; rows: two global nodes, then the words.
    packing = pack(torch.tensor([[True, False], [True, True]], device=DEVICE))
    nodes = tensor([[1, 2], [3, 4], [5, 6], [7, 8], [0, 1]])
    tells, same = tells_module.node_tells(nodes, tensor([10, 1]), tensor(0.5), packing)
    assert tells.tolist() == [[[12.5, 56.5, 0.0], [34.5, 78.5, 1.5]]]
    assert torch.equal(same, nodes)
    assert same.data_ptr() == nodes.data_ptr()  # handed on, not copied


def test_nodes_that_are_handed_on_have_their_own_gradient() -> None:
    inputs, _ = FUNCTIONS["node_tells"](MANY)
    nodes, weight, bias = (x.float().requires_grad_() for x in inputs)
    upstream = random(*nodes.shape, seed=21).float()
    _tells, same = tells_module.node_tells(nodes, weight, bias, MANY.packing)
    by_nodes, by_weight = torch.autograd.grad(same, [nodes, weight], upstream, allow_unused=True)
    assert torch.equal(by_nodes, upstream)
    assert by_weight is None


def test_not_a_number_behind_the_last_caption_is_never_read() -> None:
    inputs, ways = FUNCTIONS["node_tells_and_sum"](MANY)
    right = value_and_gradients(ways["kernel"], inputs, torch.float32)
    rubbish = torch.full((MANY.images, 4, MANY.sim), torch.nan, device=DEVICE)
    found = value_and_gradients(
        ways["kernel"], [torch.cat([inputs[0], rubbish], dim=1), *inputs[1:]], torch.float32
    )
    found[1] = found[1][:, : MANY.num_nodes]
    for x, y in zip(found, right, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("name", ["node_asking", "node_tells", "node_sum", "region_attention"])
def test_no_number_is_left_unset_beside_a_long_caption(name: str) -> None:
    inputs, ways = FUNCTIONS[name](CASES["long"])
    right = value_and_gradients(ways["plain"], inputs, torch.float64)
    with rubbish_in_fresh_memory():
        assert_near(value_and_gradients(ways["kernel"], inputs, torch.float32), right, 1e-5)


def test_relu_without_its_gate_backwards_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, ways = FUNCTIONS["node_linear_relu"](MANY)
    right = value_and_gradients(ways["oracle"], inputs, torch.float64)
    monkeypatch.setattr(
        linear_module, "gated", lambda g, _out: (g.flatten(0, -2), linear_module.column_sums(g))
    )
    value, *gradients = value_and_gradients(ways["kernel"], inputs, torch.float32)
    assert_near([value], right[:1], 1e-5)
    for found, expected in zip(gradients, right[1:], strict=True):
        with pytest.raises(AssertionError):
            assert_near([found], [expected], 1e-1)


@pytest.mark.parametrize("only_global", [False, True])
def test_queries_by_the_transposed_weight_would_be_noticed(only_global: bool) -> None:
    (nodes, weight, bias), _ways = FUNCTIONS["global_asking" if only_global else "node_asking"](MANY)
    wrong = oracle.node_asking(nodes, weight.T, bias, MANY.lengths, only_global=only_global)
    found = asking_module.node_asking(
        nodes.float(), weight.float(), bias.float(), MANY.packing, only_global=only_global
    )
    with pytest.raises(AssertionError):
        assert_near([found], [wrong], 1e-2)


def test_column_sums_are_those_of_float32() -> None:
    # 3,000 ones are 3,000; added up in half precision, sums stop at 2,048.
    ones = torch.ones(3000, 3, dtype=torch.float16, device=DEVICE)
    assert linear_module.column_sums(ones).tolist() == [3000.0] * 3
