"""Every kernel and its reference against loops in float64: values and all gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ops.kernel_cases import CASES, DEVICE, Case, assert_near, random, value_and_gradients
from oracles import packed as oracle
from sremkit.ops.cross_attention import packed_reference
from sremkit.ops.graph_step import packed_self_attention_reference, relu_linear_reference
from sremkit.ops.memory_update import memory_update_reference
from sremkit.ops.node_pooling import packed_scores_reference, packed_sum_reference
from sremkit.ops.node_projection import node_projection_reference
from sremkit.ops.triton import node_projection as projection_module
from sremkit.ops.triton.cross_attention import packed_attention
from sremkit.ops.triton.graph_step import packed_self_attention, relu_linear
from sremkit.ops.triton.memory_update import memory_update_kernel
from sremkit.ops.triton.node_pooling import packed_scores, packed_sum

pytest.importorskip("triton", reason="the kernels need Triton")

Function = Callable[..., Tensor]


def projection(case: Case) -> tuple[list[Tensor], dict[str, Function]]:
    inputs = [
        random(case.images, case.regions, case.num_words, seed=1, scale=0.4),
        random(case.images, case.regions, case.width, seed=2, scale=0.4),
        random(case.num_words, case.width, seed=3, scale=0.4),
        random(case.sim, case.width, seed=4, scale=0.3),
        random(case.sim, seed=5),
    ]
    return inputs, {
        "kernel": lambda *x: projection_module.packed_nodes(projection_module.Projected(*x), dtype=x[0].dtype),
        "reference": node_projection_reference,
        "oracle": oracle.node_projection,
    }


def self_attention(case: Case, *, only_global: bool = False) -> tuple[list[Tensor], dict[str, Function]]:
    packing = case.packing
    inputs = [
        random(case.images, case.num_nodes, case.sim, seed=12, scale=0.5),
        random(case.sim, case.sim, seed=13, scale=case.sim**-0.5),
        random(case.sim, seed=14, scale=0.5),
    ]
    return inputs, {
        "kernel": lambda *x: packed_self_attention(*x, packing, only_global=only_global),
        "reference": lambda *x: packed_self_attention_reference(*x, packing, only_global=only_global),
        "oracle": lambda *x: oracle.node_self_attention(*x, case.lengths, only_global=only_global),
    }


def linear(case: Case) -> tuple[list[Tensor], dict[str, Function]]:
    inputs = [
        random(case.images, case.num_nodes, case.sim, seed=15),
        random(case.sim + 2, case.sim, seed=16, scale=case.sim**-0.5),
        random(case.sim + 2, seed=17, scale=0.5),
    ]
    return inputs, {
        "kernel": relu_linear,
        "reference": relu_linear_reference,
        "oracle": lambda *x: oracle.linear(*x, relu=True),
    }


def weighted(case: Case) -> tuple[list[Tensor], dict[str, Function]]:
    packing = case.packing
    inputs = [
        random(case.images, len(case.lengths), 1 + max(case.lengths), seed=8),
        random(case.images, case.num_nodes, case.sim, seed=9),
    ]
    return inputs, {
        "kernel": lambda w, x: packed_sum(w, x, packing),
        "reference": lambda w, x: packed_sum_reference(w, x, packing),
        "oracle": lambda w, x: oracle.node_sum(w, x, case.lengths),
    }


def scores(case: Case) -> tuple[list[Tensor], dict[str, Function]]:
    packing = case.packing
    inputs = [
        random(case.images, case.num_nodes, case.sim, seed=18),
        random(1, case.sim, seed=19, scale=case.sim**-0.5),
        random(1, seed=20),
    ]
    return inputs, {
        "kernel": lambda *x: packed_scores(*x, packing)[0],
        "reference": lambda *x: packed_scores_reference(*x, packing),
        "oracle": lambda *x: oracle.node_scores(*x, case.lengths),
    }


def scores_and_sum(case: Case) -> tuple[list[Tensor], dict[str, Function]]:
    """The returned nodes are summed with weights that depend on the scores."""
    packing, (inputs, ways) = case.packing, scores(case)

    def by_kernels(*x: Tensor) -> Tensor:
        found, nodes = packed_scores(*x, packing)
        return packed_sum(found.tanh(), nodes, packing)

    return inputs, {
        "kernel": by_kernels,
        "reference": lambda *x: packed_sum_reference(ways["reference"](*x).tanh(), x[0], packing),
        "oracle": lambda *x: oracle.node_sum(ways["oracle"](*x).tanh(), x[0], case.lengths),
    }


def regions(case: Case, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], dict[str, Function]]:
    """The kernel's attention has the given dtype."""
    packing = case.packing
    mask = torch.ones(case.images, case.regions, dtype=torch.bool, device=DEVICE)
    mask[0, case.regions // 2 + 1 :] = False
    vectors = random(case.images, case.regions, case.width, seed=10, scale=case.width**-0.5)
    vectors = vectors.masked_fill(~mask.unsqueeze(2), 0.0)
    affinity = random(case.images, case.regions, case.num_words, seed=11).masked_fill(~mask.unsqueeze(2), 0.0)
    return [affinity, vectors @ vectors.transpose(1, 2)], {
        "kernel": lambda x, g: packed_attention(x, g, mask, packing, scale=9.0, dtype=dtype),
        "reference": lambda x, g: packed_reference(x, g, mask, packing, scale=9.0),
        "oracle": lambda x, g: oracle.unit_attention(x, g, mask, case.lengths, 9.0),
    }


def memory(case: Case, *, first: bool) -> tuple[list[Tensor], dict[str, Function]]:
    """The first memory is shared by all items."""
    different = 1 if first else case.images
    inputs = [
        random(different, case.num_words, case.width, seed=21),
        random(different, case.num_words, 2 * case.width, seed=22),
        random(case.images, case.regions, case.num_words, seed=23).softmax(dim=1),
        random(case.images, case.regions, 2 * case.width, seed=24),
    ]
    return inputs, {
        "kernel": memory_update_kernel,
        "reference": memory_update_reference,
        "oracle": oracle.memory_update,
    }


FUNCTIONS = {
    "memory_update": lambda case: memory(case, first=False),
    "first_memory_update": lambda case: memory(case, first=True),
    "node_projection": projection,
    "self_attention": self_attention,
    "global_self_attention": lambda case: self_attention(case, only_global=True),
    "relu_linear": linear,
    "node_scores": scores,
    "node_scores_and_sum": scores_and_sum,
    "node_sum": weighted,
    "unit_attention": regions,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("case", ["odd", "one-of-all"])
def test_a_reference_equals_the_oracle(name: str, case: str) -> None:
    inputs, ways = FUNCTIONS[name](CASES[case])
    found = value_and_gradients(ways["reference"], inputs, torch.float64)
    assert_near(found, value_and_gradients(ways["oracle"], inputs, torch.float64), 1e-10)


# Sums in float32 have six reliable digits, in half precision three and a half; a gradient loses one.
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 4e-3)], ids=["float32", "half"]
)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("case", CASES)
def test_a_kernel_equals_its_reference(name: str, case: str, dtype: torch.dtype, tolerance: float) -> None:
    inputs, ways = FUNCTIONS[name](CASES[case])
    right = value_and_gradients(ways["reference"], inputs, torch.float64)
    assert_near(value_and_gradients(ways["kernel"], inputs, dtype), right, tolerance)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives_are_the_references(name: str) -> None:
    inputs, ways = FUNCTIONS[name](CASES["odd"])

    def curvature(function: Function, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
        value = function(*leaves)
        first = torch.autograd.grad(value.square().sum() + value.sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))

    right = curvature(ways["reference"], torch.float64)
    found = curvature(ways["kernel"], torch.float32)
    for x, y in zip(found, right, strict=True):
        if y.norm() > 1e-9:  # a unit vector's second derivative may vanish
            assert_near([x], [y], 1e-4)


def test_the_backward_pass_gives_the_same_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, ways = projection(Case([100, 60, 100], images=2, regions=3, width=20, sim=16))
    whole = value_and_gradients(ways["kernel"], inputs, torch.float32)
    monkeypatch.setattr(projection_module, "_BACKWARD_BYTES", 1)  # 128 words at a time
    in_parts = value_and_gradients(ways["kernel"], inputs, torch.float32)
    assert_near(in_parts, [x.double() for x in whole], 1e-6)


def test_upstream_may_be_a_slice_of_a_concatenation() -> None:
    inputs, ways = projection(CASES["odd"])

    def between(function: Function) -> Function:
        def joined(*x: Tensor) -> Tensor:
            value = function(*x)
            return torch.cat([value[:, :2] * 2, value, value[:, :1]], dim=1)

        return joined

    right = value_and_gradients(between(ways["reference"]), inputs, torch.float64)
    assert_near(value_and_gradients(between(ways["kernel"]), inputs, torch.float32), right, 1e-5)


def test_a_vector_that_vanishes_has_a_finite_gradient() -> None:
    inputs, ways = projection(CASES["odd"])
    inputs[3], inputs[4] = torch.zeros_like(inputs[3]), torch.zeros_like(inputs[4])
    found = value_and_gradients(ways["kernel"], inputs, torch.float32)
    assert torch.equal(found[0], torch.zeros_like(found[0]))
    assert all(g.isfinite().all() for g in found)


def test_an_image_without_regions_attends_to_nothing_with_finite_gradients() -> None:
    case = CASES["odd"]
    packing = case.packing
    no_regions = torch.zeros(case.images, case.regions, dtype=torch.bool, device=DEVICE)
    inputs = [random(case.images, case.regions, n, seed=1) * 0 for n in (case.num_words, case.regions)]
    found = value_and_gradients(
        lambda x, g: packed_attention(x, g, no_regions, packing, scale=9.0), inputs, torch.float32
    )
    assert torch.equal(found[0], torch.zeros_like(found[0]))
    assert all(g.isfinite().all() for g in found)


@pytest.mark.parametrize("name", ["self_attention", "node_scores_and_sum", "node_sum", "unit_attention"])
def test_a_kernel_with_wrong_caption_boundaries_would_be_noticed(name: str) -> None:
    case = CASES["odd"]
    inputs, ways = FUNCTIONS[name](case)
    shifted = Case([4, 6, 1, 5], case.images, case.regions, case.width, case.sim)
    _, wrong = FUNCTIONS[name](shifted)
    if name == "node_sum":
        inputs[0] = inputs[0][:, :, :7]  # the shifted captions are one node shorter at most
        with pytest.raises(AssertionError):
            assert_near(
                value_and_gradients(wrong["kernel"], inputs, torch.float32)[:1],
                [oracle.node_sum(inputs[0], inputs[1], [3, 6, 1, 5])],
                1e-2,
            )
        return
    right = value_and_gradients(ways["oracle"], inputs, torch.float64)
    with pytest.raises(AssertionError):
        assert_near(value_and_gradients(wrong["kernel"], inputs, torch.float32), right, 1e-2)


#: The axis along which a function's inputs may have spare rows, and which of the inputs.
WITH_SPARE_ROWS = {
    "self_attention": (1, [True, False, False]),
    "global_self_attention": (1, [True, False, False]),
    "node_scores": (1, [True, False, False]),
    "node_scores_and_sum": (1, [True, False, False]),
    "node_sum": (1, [False, True]),
    "unit_attention": (2, [True, False]),
}


@pytest.mark.parametrize("name", WITH_SPARE_ROWS)
@pytest.mark.parametrize(("way", "dtype"), [("reference", torch.float64), ("kernel", torch.float32)])
def test_spare_rows_have_no_influence_and_no_gradient(name: str, way: str, dtype: torch.dtype) -> None:
    """Words and nodes may have a few rows more than the captions, whatever is in them."""
    inputs, ways = FUNCTIONS[name](CASES["odd"])
    right = value_and_gradients(ways["reference"], inputs, torch.float64)[0]
    dim, fills = WITH_SPARE_ROWS[name]
    longer = [
        torch.cat([x, x.narrow(dim, 0, 3) + 1], dim=dim) if fill else x for x, fill in zip(inputs, fills, strict=True)
    ]
    value, *gradients = value_and_gradients(ways[way], longer, dtype)
    assert_near([value[:, : right.shape[1], : right.shape[2]]], [right], 1e-5)
    for x, gradient, fill in zip(inputs, gradients, fills, strict=True):
        if fill:
            assert (gradient.narrow(dim, x.shape[dim], 3) == 0).all()
            assert (gradient.narrow(dim, 0, x.shape[dim]) != 0).any()


def test_without_images_all_gradients_are_zero() -> None:
    inputs, ways = projection(replace(CASES["odd"], images=0))
    found = value_and_gradients(ways["kernel"], inputs, torch.float32)
    assert all(not gradient.any() for gradient in found[1:])


def test_attention_over_regions_in_bfloat16_is_as_accurate_as_that_dtype() -> None:
    inputs, ways = regions(CASES["halves"], torch.bfloat16)
    right = value_and_gradients(ways["reference"], inputs, torch.float64)
    found = value_and_gradients(ways["kernel"], inputs, torch.bfloat16)
    assert [x.dtype for x in found] == [torch.bfloat16] * 3
    assert_near(found, right, 2e-2)


def test_attention_to_zero_regions_has_the_softmaxs_gradient() -> None:
    """Where the norm is its floor, no gradient goes through it."""
    (affinity, gram), ways = regions(CASES["odd"])
    inputs = [affinity, torch.zeros_like(gram)]
    right = value_and_gradients(ways["reference"], inputs, torch.float64)
    found = value_and_gradients(ways["kernel"], inputs, torch.float32)
    assert right[1].abs().max() > 1e6  # attention divided by twice the floor
    assert_near(found, right, 1e-5)
