"""The shorter backward pass through a layer norm and its linear layer: the same function, fewer products."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from sremkit.models.layers.encoders import VectorTower
from sremkit.ops.functional import l2_normalize
from sremkit.ops.normed_linear import NormedLinear, normed_linear

B, D, H = 5, 4, 3


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def inputs() -> tuple[Tensor, ...]:
    """Normalised rows, gain, shift, weight and bias; the rows need no gradient."""
    learned = [random(*shape, seed=k).requires_grad_() for k, shape in enumerate([(D,), (D,), (H, D), (H,)])]
    return F.layer_norm(random(B, D, seed=9), (D,)), *learned


def layers() -> tuple[nn.LayerNorm, nn.Linear]:
    """Both with nothing left at zero or one."""
    norm, linear = nn.LayerNorm(D, dtype=torch.float64, eps=1e-3), nn.Linear(D, H, dtype=torch.float64)
    with torch.no_grad():
        for k, parameter in enumerate([*norm.parameters(), *linear.parameters()]):
            parameter.copy_(random(*parameter.shape, seed=k))
    return norm, linear


def gradients(output: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(output, parameters, random(*output.shape, seed=5), create_graph=True))


def test_first_and_second_gradients_are_those_of_differences() -> None:
    assert gradcheck(NormedLinear.apply, inputs())
    assert gradgradcheck(NormedLinear.apply, inputs())


def test_the_gradients_of_one_row_by_hand() -> None:
    # One row x̂ = (1, -1), g = (2, 3), s = (5, 7), W = (11, 13), c = 0; y = 11 · (2 + 5) + 13 · (-3 + 7) = 129.
    # With u = 1: ∂g = W ∘ x̂ = (11, -13), ∂s = W = (11, 13), ∂W = g ∘ x̂ + s = (7, 4), ∂c = 1.
    learned = [torch.tensor(values, requires_grad=True) for values in ([2.0, 3.0], [5.0, 7.0], [[11.0, 13.0]], [0.0])]
    y = NormedLinear.apply(torch.tensor([[1.0, -1.0]]), *learned)
    assert y.item() == 129.0
    y.backward()
    assert [x.grad.tolist() for x in learned] == [[11.0, -13.0], [11.0, 13.0], [[7.0, 4.0]], [1.0]]


def test_values_and_gradients_of_two_orders_are_those_of_the_layers() -> None:
    (norm, linear), x = layers(), random(B, D, seed=6)
    parameters = [*norm.parameters(), *linear.parameters()]
    found, right = normed_linear(x, norm, linear), linear(norm(x))
    torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)
    first, first_right = gradients(found, parameters), gradients(right, parameters)
    torch.testing.assert_close(first, first_right, rtol=1e-12, atol=1e-12)
    second, second_right = (
        torch.autograd.grad(sum(g.square().sum() for g in some), parameters[:3]) for some in (first, first_right)
    )
    torch.testing.assert_close(second, second_right, rtol=1e-11, atol=1e-11)
    assert all(g.abs().max() > 0.1 for g in second)


def wrong_backward(mistake: str, upstream: Tensor, normed: Tensor, g: Tensor, s: Tensor, w: Tensor) -> list[Tensor]:
    product, total = upstream.T @ normed, upstream.sum(dim=0)
    by_gain, by_shift = (product * w).sum(dim=0), total @ w
    by_weight = product * g + total[:, None] * s
    if mistake == "shift left out of the weight's gradient":
        by_weight = product * g
    if mistake == "gain left out of the weight's gradient":
        by_weight = product + total[:, None] * s
    if mistake == "gain's gradient without the weight":
        by_gain = product.sum(dim=0)
    if mistake == "mean over the batch":
        by_shift = by_shift / len(upstream)
    return [by_gain, by_shift, by_weight, total]


@pytest.mark.parametrize(
    "mistake",
    [
        "shift left out of the weight's gradient",
        "gain left out of the weight's gradient",
        "gain's gradient without the weight",
        "mean over the batch",
    ],
)
def test_a_wrong_twin_is_rejected(mistake: str) -> None:
    normed, *learned = inputs()
    upstream = random(B, H, seed=5)
    found = torch.autograd.grad(NormedLinear.apply(normed, *learned), learned, upstream)
    torch.testing.assert_close(list(found), wrong_backward("", upstream, normed, *learned[:3]))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(list(found), wrong_backward(mistake, upstream, normed, *learned[:3]))


def shortened(y: Tensor) -> bool:
    """Whether `y` came by the shorter way."""
    return y.grad_fn is not None and y.grad_fn.name() == "NormedLinearBackward"


def test_only_plain_rows_take_the_shorter_way() -> None:
    (norm, linear), x = layers(), random(B, D, seed=6)
    assert shortened(normed_linear(x, norm, linear))
    asked = x.clone().requires_grad_()
    plain = normed_linear(asked, norm, linear)
    assert not shortened(plain)
    plain.sum().backward()
    assert asked.grad.abs().max() > 0.1
    assert not shortened(normed_linear(x.view(1, B, D), norm, linear))
    with torch.no_grad():
        assert torch.equal(normed_linear(x, norm, linear), linear(norm(x)))


def test_autocast_computes_as_it_does_for_the_layers() -> None:
    norm, linear = (layer.float() for layer in layers())
    x = random(B, D, seed=6, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, right = normed_linear(x, norm, linear), linear(norm(x))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, right)
    parameters = [*norm.parameters(), *linear.parameters()]
    upstream = random(B, H, seed=5).bfloat16()
    by_found, by_right = (torch.autograd.grad(y, parameters, upstream) for y in (found, right))
    assert all(torch.equal(x, y) for x, y in zip(by_found, by_right, strict=True))


@pytest.mark.parametrize("hidden", [64, 130])
def test_more_hidden_units_than_are_taken_at_a_time(hidden: int) -> None:
    norm, linear = nn.LayerNorm(D, dtype=torch.float64), nn.Linear(D, hidden, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(random(hidden, D, seed=1))
    x, upstream = random(B, D, seed=6), random(B, hidden, seed=5)
    parameters = [*norm.parameters(), *linear.parameters()]
    found, right = (
        torch.autograd.grad(y, parameters, upstream) for y in (normed_linear(x, norm, linear), linear(norm(x)))
    )
    torch.testing.assert_close(found, right, rtol=1e-11, atol=1e-11)


def test_a_compiler_sees_the_layers() -> None:
    norm, linear = layers()
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    x = random(B, D, seed=6)
    compiled = torch.compile(lambda x: normed_linear(x, norm, linear), backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x), linear(norm(x)), rtol=1e-12, atol=1e-12)
    assert len(seen) == 2
    assert "layer_norm" in seen[0]
    assert "linear" in seen[1]


def test_a_tower_keeps_its_names_and_its_numbers() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tower = VectorTower(D, 8, 3, dropout=0.5).double()
    # What checkpoints of earlier versions hold.
    assert list(tower.state_dict()) == [
        "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "layers.4.weight", "layers.4.bias",
    ]  # fmt: skip
    x = random(B, D, seed=6)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        found = tower(x)
        torch.manual_seed(1)
        right = l2_normalize(tower.layers(x))
    torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        gradients(found, list(tower.parameters())),
        gradients(right, list(tower.parameters())),
        rtol=1e-10,
        atol=1e-12,
    )
    assert not torch.equal(found, tower.eval()(x))
