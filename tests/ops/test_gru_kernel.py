"""The GRU's kernel, its reference and loops in float64 agree, and `run_gru` is PyTorch's GRU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from ops.kernel_cases import DEVICE, assert_near, random, value_and_gradients
from oracles import gru as oracle
from sremkit import ops
from sremkit.ops.gru import padded_reference, run_gru
from sremkit.ops.triton import gru as module

pytest.importorskip("triton", reason="the kernels need Triton")

Function = Callable[..., Tensor]


@dataclass
class Captions:
    lengths: list[int]
    hidden: int
    sides: int
    words: int | None = None  # columns, if more than the longest caption has words

    @property
    def inputs(self) -> list[Tensor]:
        """Inputs of the words, weight and bias; the padding is random too."""
        width, gates = self.words or max(self.lengths), 3 * self.hidden
        return [
            random(len(self.lengths), width, self.sides, gates, seed=1),
            random(self.sides, gates, self.hidden, seed=2, scale=self.hidden**-0.5),
            random(self.sides, gates, seed=3, scale=0.5),
        ]

    @property
    def ways(self) -> dict[str, Function]:
        lengths = torch.tensor(self.lengths, dtype=torch.int32, device=DEVICE)
        return {
            "kernel": lambda *x: module.gru_kernel(*x, lengths),
            "reference": lambda *x: padded_reference(*x, lengths),
            "oracle": lambda *x: oracle.gru(*x, self.lengths),
        }

    @property
    def present(self) -> Tensor:
        columns = torch.arange(self.words or max(self.lengths), device=DEVICE)
        return columns < torch.tensor(self.lengths, device=DEVICE).unsqueeze(1)


#: Blocks have 32 hidden units and 64 captions; nothing here divides them.
SMALL = {
    "one-way": Captions([3, 1, 5, 2, 4], hidden=5, sides=1),
    "two-ways": Captions([3, 1, 5, 2, 4], hidden=5, sides=2),
    "one-of-all": Captions([1], hidden=1, sides=2),
    "more-columns": Captions([2, 3], hidden=3, sides=2, words=5),
}
LARGE = {
    "wide": Captions([3, 1, 2], hidden=37, sides=2),
    "many": Captions([1 + k % 3 for k in range(67)], hidden=3, sides=1),
}
CASES = SMALL | LARGE


@pytest.mark.parametrize("name", SMALL)
def test_the_reference_equals_the_oracle(name: str) -> None:
    inputs, ways = CASES[name].inputs, CASES[name].ways
    found = value_and_gradients(ways["reference"], inputs, torch.float64)
    assert_near(found, value_and_gradients(ways["oracle"], inputs, torch.float64), 1e-10)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 4e-3)], ids=["float32", "half"]
)
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_equals_its_reference(name: str, dtype: torch.dtype, tolerance: float) -> None:
    inputs, ways = CASES[name].inputs, CASES[name].ways
    right = value_and_gradients(ways["reference"], inputs, torch.float64)
    assert_near(value_and_gradients(ways["kernel"], inputs, dtype), right, tolerance)


@pytest.mark.parametrize("name", ["two-ways", "wide", "many"])
def test_blocks_of_other_sizes_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, ways = CASES[name].inputs, CASES[name].ways
    right = value_and_gradients(ways["reference"], inputs, torch.float64)
    schedule = {"num_warps": 4, "num_stages": 2}
    monkeypatch.setitem(module.FORWARD, 4, {"BLOCK_B": 16, "BLOCK_H": 64, "BLOCK_K": 16, **schedule})
    monkeypatch.setitem(module.BACKWARD, 4, {"BLOCK_B": 32, "BLOCK_H": 16, "BLOCK_K": 32, **schedule})
    assert_near(value_and_gradients(ways["kernel"], inputs, torch.float32), right, 1e-5)


def test_the_order_of_captions_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs take captions by their length; which caption is where must not matter."""
    for cut in (module.FORWARD, module.BACKWARD):
        monkeypatch.setitem(cut, 4, {**cut[4], "BLOCK_B": 16})
    case = Captions([1 + (5 * k) % 7 for k in range(35)], hidden=3, sides=2)
    x, weight, bias = case.inputs
    g = torch.Generator().manual_seed(5)
    shuffled = torch.randperm(35, generator=g)
    other = Captions([case.lengths[k] for k in shuffled.tolist()], hidden=3, sides=2)
    found = value_and_gradients(case.ways["kernel"], [x, weight, bias], torch.float32)
    upstream = random(*found[0].shape, seed=99).float()
    leaves = [t.float().requires_grad_() for t in (x[shuffled], weight, bias)]
    value = other.ways["kernel"](*leaves)
    by_x, by_weight, by_bias = torch.autograd.grad(value, leaves, upstream[:, shuffled])
    right = [found[0][:, shuffled], found[1][shuffled], *found[2:]]
    assert_near([value, by_x, by_weight, by_bias], [t.double() for t in right], 1e-6)


@pytest.mark.parametrize("way", ["kernel", "reference"])
def test_padding_has_no_state_no_influence_and_no_gradient(way: str) -> None:
    case = CASES["more-columns"]
    (x, weight, bias), absent = case.inputs, ~case.present
    right = value_and_gradients(case.ways[way], [x, weight, bias], torch.float32)
    value, by_inputs = right[:2]
    assert (value[:, absent] == 0).all()
    assert (by_inputs[absent] == 0).all()
    assert (by_inputs[~absent] != 0).all()
    x[absent] = 1e4
    for changed, before in zip(
        value_and_gradients(case.ways[way], [x, weight, bias], torch.float32), right, strict=True
    ):
        assert torch.equal(changed, before)


def test_one_hidden_unit_by_hand() -> None:
    # All weights 0, so r = z = σ(0) = 1/2 and n = tanh(x_n + r · c_n). With c_n = 2 and words x_n = 0 and -1:
    # n = tanh(1), tanh(0) = 0. Forwards h = tanh(1) / 2, then 0 + tanh(1) / 4;
    # backwards the second word comes first: h = 0, then tanh(1) / 2.
    x = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, -1.0]).view(1, 2, 1, 3).expand(1, 2, 2, 3).to(DEVICE)
    weight, bias = torch.zeros(2, 3, 1, device=DEVICE), torch.tensor([[0.0, 0.0, 2.0]] * 2, device=DEVICE)
    states = module.gru_kernel(x, weight, bias, torch.tensor([2], dtype=torch.int32, device=DEVICE))
    half = torch.tanh(torch.tensor(1.0)).item() / 2
    expected = torch.tensor([[half, half / 2], [half, 0.0]], device=DEVICE)
    torch.testing.assert_close(states[:, 0, :, 0], expected, rtol=1e-6, atol=1e-7)


def test_second_derivatives_are_the_references() -> None:
    inputs, ways = CASES["two-ways"].inputs, CASES["two-ways"].ways

    def curvature(function: Function, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
        value = function(*leaves)
        first = torch.autograd.grad(value.square().sum() + value.sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))

    right = curvature(ways["reference"], torch.float64)
    assert all(y.norm() > 1e-2 for y in right)
    assert_near(curvature(ways["kernel"], torch.float32), right, 1e-4)
    assert_near(right, curvature(ways["oracle"], torch.float64), 1e-9)


def wrong_twin(x: Tensor, weight: Tensor, bias: Tensor, lengths: list[int], mistake: str) -> Tensor:
    """The network with one mistake, or with none for the mistake ''."""
    num_items, num_words, num_sides, _ = x.shape
    out = x.new_zeros(num_sides, num_items, num_words, weight.shape[2])
    for side in range(num_sides):
        for item in range(num_items):
            end = num_words if mistake == "does not stop at the end" else lengths[item]
            words = list(range(end)) if side == 0 else list(range(end))[::-1]
            if side == 1 and mistake == "reads the second direction from the padding":
                words = list(range(num_words))[::-1]
            if side == 1 and mistake == "reads both directions alike":
                words = words[::-1]
            h = x.new_zeros(weight.shape[2])
            for word in words:
                x_r, x_z, x_n = x[item, word, side].chunk(3)
                u_r, u_z, u_n = weight[side].chunk(3)
                c_r, c_z, c_n = bias[side].chunk(3)
                r, z = torch.sigmoid(x_r + c_r + u_r @ h), torch.sigmoid(x_z + c_z + u_z @ h)
                inside = r * (u_n @ h + c_n)
                if mistake == "resets the state, not the product":
                    inside = u_n @ (r * h) + c_n
                if mistake == "resets all but the bias":
                    inside = r * (u_n @ h) + c_n
                n = torch.tanh(x_n + inside)
                h = z * n + (1 - z) * h if mistake == "swaps old and new" else (1 - z) * n + z * h
                if word < lengths[item] or mistake == "does not stop at the end":
                    out[side, item, word] = h
    return out


@pytest.mark.parametrize(
    "mistake",
    [
        "does not stop at the end",
        "reads the second direction from the padding",
        "reads both directions alike",
        "resets the state, not the product",
        "resets all but the bias",
        "swaps old and new",
    ],
)
def test_a_wrong_twin_is_rejected(mistake: str) -> None:
    case = CASES["two-ways"]
    value = case.ways["kernel"](*(x.float() for x in case.inputs))
    assert_near([value], [wrong_twin(*case.inputs, case.lengths, "")], 1e-5)
    with pytest.raises(AssertionError):
        assert_near([value], [wrong_twin(*case.inputs, case.lengths, mistake)], 1e-2)


def gru_and_gradients(gru: nn.GRU, x: Tensor, mask: Tensor, *, backend: str, half: bool = False) -> dict[str, Tensor]:
    """Outputs and last states of `run_gru`, and gradients by the input and by every parameter."""
    x = x.detach().requires_grad_()
    gru.zero_grad()
    with ops.use(backend), torch.autocast(DEVICE, dtype=torch.float16, enabled=half):
        output, last = run_gru(gru, x, mask)
    # Their parts in the loss differ, so that an exchange of the two would show.
    weights = [random(*t.shape, seed=seed).to(t.dtype) for seed, t in ((7, output), (8, last))]
    (output * weights[0]).sum().add((last * weights[1]).sum()).backward()
    gradients = {key: p.grad.double() for key, p in gru.named_parameters()}
    return {"output": output.double(), "last": last.double(), "by_x": x.grad.double(), **gradients}


@pytest.mark.usefixtures("_without_cudnn")
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one-way", "two-ways"])
def test_run_gru_by_the_kernel_is_the_packed_gru(bidirectional: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        gru = nn.GRU(6, 35, batch_first=True, bidirectional=bidirectional).to(DEVICE)
    x = random(5, 6, 6, seed=4)
    lengths = torch.tensor([4, 1, 6, 0, 3], device=DEVICE)  # a text without words counts as one of one word
    mask = torch.arange(6, device=DEVICE) < lengths.unsqueeze(1)
    found = gru_and_gradients(gru, x.float(), mask, backend="triton")
    halved = gru_and_gradients(gru, x.float(), mask, backend="triton", half=True)
    right = gru_and_gradients(gru.double(), x, mask, backend="plain")
    assert found.keys() == right.keys()
    names = list(right)
    assert_near([found[name] for name in names], [right[name].detach() for name in names], 1e-5)
    assert_near([halved[name] for name in names], [right[name].detach() for name in names], 4e-3)
