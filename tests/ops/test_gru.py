"""GRUs on a CPU: against PyTorch's GRU item by item, an oracle, and second derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from oracles.gru import next_state
from sremkit.ops import cpu as module
from sremkit.ops.cpu import gru_steps
from sremkit.ops.gru import gru_steps_reference, run_gru

LENGTHS = [4, 1, 6, 0, 3, 4]  # a text without words counts as one of one word
WIDTH = 7  # one more than the longest has


def network(*, bidirectional: bool, hidden: int = 5) -> nn.GRU:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.GRU(3, hidden, batch_first=True, bidirectional=bidirectional).double()


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def texts() -> tuple[Tensor, Tensor]:
    return numbers(len(LENGTHS), WIDTH, 3), torch.arange(WIDTH) < torch.tensor(LENGTHS).unsqueeze(1)


def item_by_item(gru: nn.GRU, x: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's own network, for each item with its own words alone."""
    outputs, last = torch.zeros(len(x), WIDTH, gru.hidden_size, dtype=x.dtype), []
    for item, length in enumerate(LENGTHS):
        states, end = gru(x[item : item + 1, : max(1, length)])
        outputs[item, : states.shape[1]] = states[0].unflatten(1, (-1, gru.hidden_size)).mean(dim=1)
        last.append(end[:, 0].mean(dim=0))
    return outputs, torch.stack(last)


def value_and_gradients(gru: nn.GRU, x: Tensor, found: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Outputs, last states, and gradients of a loss in which every number has a weight of its own."""
    output, last = found
    loss = (output * numbers(*output.shape, seed=7)).sum() + (last * numbers(*last.shape, seed=8)).sum()
    return [output, last, *torch.autograd.grad(loss, [x, *gru.parameters()])]


@pytest.mark.parametrize("bidirectional", [False, True], ids=["one-way", "two-ways"])
def test_it_is_pytorchs_network_of_each_item(bidirectional: bool) -> None:
    gru, (x, mask) = network(bidirectional=bidirectional), texts()
    x.requires_grad_()
    right = value_and_gradients(gru, x, item_by_item(gru, x))
    for found, expected in zip(value_and_gradients(gru, x, run_gru(gru, x, mask)), right, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bidirectional", [False, True], ids=["one-way", "two-ways"])
def test_while_compiling_pytorchs_gru_computes_the_same(bidirectional: bool, monkeypatch) -> None:
    gru, (x, mask) = network(bidirectional=bidirectional), texts()
    right = run_gru(gru, x, mask)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(module, "gru_steps", None)
    for found, expected in zip(run_gru(gru, x, mask), right, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_padding_has_no_influence_and_no_gradient() -> None:
    gru, (x, mask) = network(bidirectional=True), texts()
    mask[3, 0] = True  # a text without words reads this one
    right = run_gru(gru, x, mask)
    changed = x.masked_fill(~mask.unsqueeze(2), 1e6).requires_grad_()
    output, last = run_gru(gru, changed, mask)
    assert torch.equal(output, right[0])
    assert torch.equal(last, right[1])
    assert (output[~mask] == 0).all()
    (by_x,) = torch.autograd.grad(output.square().sum() + last.square().sum(), changed)
    assert (by_x[~mask] == 0).all()
    assert (by_x[mask] != 0).all()


def test_half_precision_keeps_states_in_full() -> None:
    gru, (x, mask) = network(bidirectional=True).float(), texts()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, last = run_gru(gru, x.float(), mask)
    assert output.dtype == last.dtype == torch.float32
    torch.testing.assert_close(output, run_gru(gru, x.float(), mask)[0], rtol=0, atol=0)


SIZES = [3, 3, 2, 1]


def packed() -> list[Tensor]:
    """Inputs of the words, weight and bias of two hidden units."""
    return [numbers(9, 6, seed=2), numbers(6, 2, seed=3), numbers(6, seed=4)]


@pytest.mark.parametrize("steps", [gru_steps, gru_steps_reference])
def test_the_steps_are_the_oracles(steps) -> None:
    inputs, weight, bias = packed()
    found = steps(inputs, weight, bias, SIZES)
    start = 0
    state = [torch.zeros(2, dtype=torch.float64)] * 3
    for size in SIZES:
        for item in range(size):
            state[item] = next_state(inputs[start + item], weight, bias, state[item])
            torch.testing.assert_close(found[start + item], state[item], rtol=1e-12, atol=1e-12)
        start += size
    assert start == len(found)


def test_gradients_and_gradients_of_gradients_are_right() -> None:
    leaves = [x.requires_grad_() for x in packed()]
    assert torch.autograd.gradcheck(lambda *x: gru_steps(*x, SIZES), leaves)
    assert torch.autograd.gradgradcheck(lambda *x: gru_steps(*x, SIZES), leaves)


def test_a_single_step_by_hand() -> None:
    # No state yet and all biases 0: h = (1 - σ(x_z)) tanh(x_n); with x_z = 0 half of tanh(1).
    state = gru_steps(torch.tensor([[5.0, 0.0, 1.0]]), torch.ones(3, 1), torch.zeros(3), [1])
    torch.testing.assert_close(state, torch.tanh(torch.ones(1, 1)) / 2)


def test_gradients_that_will_be_differentiated_are_the_same() -> None:
    leaves = [x.requires_grad_() for x in packed()]
    states = gru_steps(*leaves, SIZES)
    upstream = numbers(*states.shape, seed=5)
    plain = torch.autograd.grad(states, leaves, upstream, retain_graph=True)
    again = torch.autograd.grad(states, leaves, upstream, create_graph=True)
    for found, expected in zip(again, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_steps_are_used_where_gradients_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(module, "gru_steps", lambda *a: used.append(1) or gru_steps(*a))
    gru, (x, mask) = network(bidirectional=True), texts()
    right, _ = run_gru(gru, x, mask)
    assert len(used) == 2  # directions
    with torch.no_grad():
        found, _ = run_gru(gru, x, mask)
    assert len(used) == 2
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-12)


def test_other_networks_are_refused_or_left_to_pytorch() -> None:
    x, mask = texts()
    with pytest.raises(ValueError, match="a GRU of one layer, this one has 2"):
        run_gru(nn.GRU(3, 5, num_layers=2, batch_first=True).double(), x, mask)
    gru = nn.GRU(3, 5, batch_first=True, bias=False).double()
    torch.testing.assert_close(run_gru(gru, x, mask)[0], item_by_item(gru, x)[0])
