"""The meta-gradient of MSCN against finite differences, on backbones of every kind."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from small_models import SMALL, make_items
from sremkit.methods.common.meta_step import meta_gradients
from sremkit.models import BACKBONES, build_matcher
from sremkit.models.wrappers.meta_scored import MetaScored

RATE = 0.05
NAMES = [name for name in BACKBONES if BACKBONES[name].image_input != "pixels"]
PIXELS = [name for name in BACKBONES if BACKBONES[name].image_input == "pixels"]


def network_of(name: str, **options: bool) -> MetaScored:
    torch.manual_seed(3)
    member = {"name": name, "options": {**SMALL[name], **options}}
    network = build_matcher("meta-scored", member=member, hidden_size=4).double()
    assert isinstance(network, MetaScored)
    with torch.no_grad():  # a bias of 0 would put every vector of zeros onto the kink of a ReLU
        network.meta_network.hidden.bias.uniform_(-0.2, 0.2)
    return network.train()


def ranking(score) -> torch.Tensor:
    """Smooth, so that finite differences mean something."""
    logits = score(make_items(5, seed=1).batch())
    return F.cross_entropy(logits, torch.arange(5)) + logits.sigmoid().square().sum()


def meta_loss(score) -> torch.Tensor:
    logits = score(make_items(4, seed=2).batch())
    return F.binary_cross_entropy_with_logits(logits, torch.eye(4, dtype=torch.float64))


def after_virtual_step(network: MetaScored, *, rate: float = RATE, ranking=ranking, meta_loss=meta_loss) -> float:
    """J(W - rate dL/dW; T) by first derivatives only, with W and T of the network as they are."""
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}

    def score_with(weights: dict[str, torch.Tensor]):
        return lambda batch: functional_call(network, {**weights, **buffers}, (batch,))

    weights = {f"backbone.{name}": p for name, p in network.backbone.named_parameters()}
    slopes = torch.autograd.grad(ranking(score_with({})), list(weights.values()), materialize_grads=True)
    stepped = {k: (w - rate * g).detach() for (k, w), g in zip(weights.items(), slopes, strict=True)}
    with torch.no_grad():
        return float(meta_loss(score_with(stepped)))


def by_finite_differences(network: MetaScored, parameter: torch.Tensor, *, step: float = 1e-6) -> torch.Tensor:
    slopes = torch.zeros_like(parameter)
    for place in range(parameter.numel()):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.view(-1)[place] += sign * step
            values.append(after_virtual_step(network))
            with torch.no_grad():
                parameter.view(-1)[place] -= sign * step
        slopes.view(-1)[place] = (values[0] - values[1]) / (2 * step)
    return slopes


@pytest.mark.parametrize("name", NAMES)
def test_the_meta_gradient_is_that_of_finite_differences(name: str) -> None:
    network = network_of(name)
    got = meta_gradients(network, ranking, meta_loss, virtual_rate=RATE)
    assert got.keys() == dict(network.meta_network.named_parameters()).keys()
    for key, parameter in network.meta_network.named_parameters():
        expected = by_finite_differences(network, parameter)
        # Central differences of step 1e-6 are good to about 1e-9 of numbers around 1.
        torch.testing.assert_close(got[key], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", PIXELS)
def test_transformers_on_pixels_have_the_second_derivative(name: str) -> None:
    """The fused attention has none, so MSCN could not train them. Frozen weights and recomputed layers are allowed."""
    batch = make_items(4, seed=2).batch(name)
    match = torch.eye(4, dtype=torch.float64)

    def loss(score) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(score(batch), match)

    network = network_of(name)
    expected = meta_gradients(network, loss, loss, virtual_rate=RATE)
    first = meta_gradients(
        network, lambda score: loss(score).detach() + 0.0 * score(batch).sum(), loss, virtual_rate=RATE
    )
    assert not torch.allclose(expected["output.weight"], first["output.weight"], rtol=1e-3, atol=0)
    weight, slope = network.meta_network.output.weight, 0.0
    for sign in (1, -1):  # along the gradient, by first derivatives only
        with torch.no_grad():
            weight.add_(sign * 1e-6 * expected["output.weight"])
        slope += sign * after_virtual_step(network, ranking=loss, meta_loss=loss) / 2e-6
        with torch.no_grad():
            weight.sub_(sign * 1e-6 * expected["output.weight"])
    assert slope == pytest.approx(float(expected["output.weight"].square().sum()), rel=1e-5)
    recomputing = network_of(name, gradient_checkpointing=True)
    again = meta_gradients(recomputing, loss, loss, virtual_rate=RATE)
    for key, gradient in again.items():
        torch.testing.assert_close(gradient, expected[key], rtol=1e-10, atol=1e-14)
    network.backbone.to_logit.requires_grad_(False)
    frozen = meta_gradients(network, loss, loss, virtual_rate=RATE)
    assert not torch.allclose(frozen["output.weight"], expected["output.weight"], rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_first_order_twin_is_rejected(name: str) -> None:
    """Without the way through the virtual step the gradient is another one."""
    network = network_of(name)
    second = meta_gradients(network, ranking, meta_loss, virtual_rate=RATE)
    first = meta_gradients(network, _without_slope(ranking), meta_loss, virtual_rate=RATE)
    assert not torch.allclose(second["output.weight"], first["output.weight"], rtol=1e-3, atol=0)


def _without_slope(loss):
    """The loss's value, whose virtual step does not depend on the meta-network."""
    return lambda score: loss(score).detach() + 0.0 * score(make_items(5, seed=1).batch()).sum()


@pytest.mark.parametrize("name", NAMES)
def test_a_virtual_step_moves_nothing(name: str) -> None:
    network = network_of(name)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    meta_gradients(network, ranking, meta_loss, virtual_rate=RATE)
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())
    assert torch.is_grad_enabled()


def test_without_a_virtual_step_it_is_the_plain_gradient() -> None:
    network = network_of("dual")
    got = meta_gradients(network, ranking, meta_loss, virtual_rate=0.0)
    plain = torch.autograd.grad(meta_loss(network), list(network.meta_network.parameters()))
    torch.testing.assert_close(list(got.values()), list(plain), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", ["imram"])
def test_recomputing_would_use_the_wrong_weights_so_it_is_off_for_the_step_alone(name: str) -> None:
    """The backward pass of a virtual network, computing again, would find the real network's weights."""
    network = network_of(name)
    parts = [part for part in network.modules() if hasattr(part, "recompute")]
    assert parts
    seen = []

    def watching(score) -> torch.Tensor:
        seen.append([part.recompute for part in parts])
        return meta_loss(score)

    meta_gradients(network, ranking, watching, virtual_rate=RATE)
    assert seen == [[False] * len(parts)]
    assert all(part.recompute for part in parts)
