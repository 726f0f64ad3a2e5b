"""Nodes in tiles: the same function as the reference, without tensors as wide as the embeddings for each pair."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from oracles import node_vectors
from small_models import make_items, small_matcher, some_loss
from sremkit.ops import cpu as tiled_projection
from sremkit.ops import node_projection as projection_op
from sremkit.ops.cpu import tiled_nodes
from sremkit.ops.node_projection import can_tile, padded_reference

N, R, K, W, D, S = 5, 3, 2, 2, 6, 4


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(width: int = D) -> list[Tensor]:
    """Attention, regions, words, weight, bias and global nodes."""
    shapes = [(N, R, K * W), (N, R, width), (K, W, width), (S, width), (S,), (N, K, S)]
    return [random(*shape, seed=k).requires_grad_() for k, shape in enumerate(shapes)]


@pytest.fixture(params=[1, 2 * K * W, 1000], ids=["an image a tile", "a tile left over", "one tile"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(tiled_projection, "ROWS", request.param)
    return request.param


@pytest.mark.usefixtures("rows")
def test_nodes_are_the_global_ones_and_those_of_the_oracle() -> None:
    given = inputs()
    attention, regions, words, weight, bias, whole = (x.detach() for x in given)
    expected = node_vectors.node_vectors(*(x.tolist() for x in (attention, regions, words.flatten(0, 1), weight, bias)))
    nodes = tiled_nodes(*given)
    assert torch.equal(nodes[:, :, 0], whole)
    right = torch.tensor(expected, dtype=torch.float64).view(N, K, W, S)
    torch.testing.assert_close(nodes[:, :, 1:].detach(), right, rtol=1e-10, atol=0)


@pytest.mark.usefixtures("rows")
def test_first_gradients_are_those_of_differences() -> None:
    assert gradcheck(tiled_nodes, inputs())


def test_gradients_that_will_be_differentiated_are_the_same() -> None:
    given = inputs()
    nodes = tiled_nodes(*given)
    upstream = random(*nodes.shape, seed=9)
    plain = torch.autograd.grad(nodes, given, upstream, retain_graph=True)
    again = torch.autograd.grad(nodes, given, upstream, create_graph=True)
    for found, expected in zip(again, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_second_gradients_are_those_of_differences() -> None:
    small = [x[:2].detach().requires_grad_() if x.shape[0] == N else x for x in inputs()]
    assert gradgradcheck(tiled_nodes, small)


def test_one_word_with_one_region_by_hand() -> None:
    # v = (3, 1), w = (1, 0), a = 1: e = (2, 1), e² = (4, 1). With P = ((1, -1), (1, 0)), b = 0: z = (3, 4), whose
    # length is 5, so s = (0.6, 0.8). By the first component of s, u = (1, 0):
    #   h = (u - s (s · u)) / 5 = (1 - 0.36, -0.48) / 5 = (0.128, -0.096)
    #   Pᵀh = (0.128 - 0.096, -0.128) = (0.032, -0.128),  f = 2 e ∘ Pᵀh = (0.128, -0.256)
    #   ∂a = v · f = 0.384 - 0.256 = 0.128,  ∂v = f,  ∂w = -f,  ∂P = h (4, 1),  ∂b = h.
    given = [
        torch.tensor(values, dtype=torch.float64, requires_grad=True)
        for values in (
            [[[1.0]]], [[[3.0, 1.0]]], [[[1.0, 0.0]]], [[1.0, -1.0], [1.0, 0.0]], [0.0, 0.0], [[[7.0, 9.0]]],
        )
    ]  # fmt: skip
    nodes = tiled_nodes(*given)
    expected = torch.tensor([[7.0, 9.0], [0.6, 0.8]], dtype=torch.float64)
    torch.testing.assert_close(nodes[0, 0], expected, rtol=1e-8, atol=0)  # the length has 1e-8 added to it
    nodes[0, 0, 1, 0].backward()
    right = [
        [0.128], [0.128, -0.256], [-0.128, 0.256], [0.512, 0.128, -0.384, -0.096], [0.128, -0.096], [0.0, 0.0],
    ]  # fmt: skip
    for x, gradient in zip(given, right, strict=True):
        assert x.grad is not None
        assert x.grad.flatten().tolist() == pytest.approx(gradient, rel=1e-7)


MISTAKES = (
    "the square's factor 2 left out",
    "words added instead of taken off",
    "normalisation taken for a constant",
    "gradient by the words of the last image only",
    "difference not squared for the weight",
)


def wrong_backward(mistake: str, upstream: Tensor, given: list[Tensor]) -> list[Tensor]:
    """The formulas of the module's docstring at once for everything, with a mistake or with none."""
    attention, regions, words, weight, bias, _ = (x.detach() for x in given)
    u = upstream[:, :, 1:].flatten(1, 2)  # (n, k·w, s)
    e = attention.transpose(1, 2) @ regions - words.flatten(0, 1)
    z = e.square() @ weight.T + bias
    length = z.norm(dim=2, keepdim=True)
    unit = z / length
    h = (u if mistake == MISTAKES[2] else u - unit * (unit * u).sum(dim=2, keepdim=True)) / length
    f = (1 if mistake == MISTAKES[0] else 2) * e * (h @ weight)
    by_words = f if mistake == MISTAKES[1] else -f
    by_words = by_words[-1] if mistake == MISTAKES[3] else by_words.sum(dim=0)
    against = e if mistake == MISTAKES[4] else e.square()
    return [
        regions @ f.transpose(1, 2),
        attention @ f,
        by_words.view_as(words),
        torch.einsum("nws,nwd->sd", h, against),
        h.sum(dim=(0, 1)),
        upstream[:, :, 0],
    ]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_twin_is_rejected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_projection, "ROWS", K * W)
    given, upstream = inputs(), random(N, K, 1 + W, S, seed=9)
    found = list(torch.autograd.grad(tiled_nodes(*given), given, upstream))
    # The twin leaves out the 1e-8 that is added to a length.
    torch.testing.assert_close(found, wrong_backward("", upstream, given), rtol=1e-6, atol=1e-6)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(found, wrong_backward(mistake, upstream, given), rtol=1e-6, atol=1e-6)


def test_a_word_whose_vector_is_zero_has_the_references_finite_gradients() -> None:
    given, upstream = inputs(), random(N, K, 1 + W, S, seed=9)
    with torch.no_grad():
        given[0][:, :, 1] = 0.0  # what word 1 attends to, and then the word itself: the difference is zero
        given[2][0, 1] = 0.0
        given[4].zero_()
    found, right = (torch.autograd.grad(nodes(*given), given, upstream) for nodes in (tiled_nodes, padded_reference))
    assert (tiled_nodes(*given)[:, 0, 2] == 0).all()
    assert all(torch.isfinite(g).all() for g in found)
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)


class LargestTensor(TorchDispatchMode):
    """The largest number of elements of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else [result]
        self.numel = max([self.numel, *(x.untyped_storage().nbytes() // 8 for x in made if isinstance(x, Tensor))])
        return result


def test_no_tensor_has_the_embeddings_width_for_every_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_projection, "ROWS", 2 * K * W)
    given, most = inputs(width=60), {}
    for nodes in (tiled_nodes, padded_reference):
        with LargestTensor() as watched:
            nodes(*given).sum().backward()
        most[nodes] = watched.numel
    assert most[padded_reference] == N * K * W * 60
    assert most[tiled_nodes] == 2 * (2 * K * W * 60)  # two buffers of the backward pass, two images each


@pytest.mark.parametrize("name", ["saf", "sgr"])
def test_a_backbone_in_tiles_gives_the_logits_and_gradients_of_the_reference(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled_projection, "ROWS", 10)
    batch, results, tiled = make_items().batch(name), [], []

    def watched(*given: Tensor) -> Tensor:
        tiled.append(tile)
        return tiled_nodes(*given)

    monkeypatch.setattr(tiled_projection, "tiled_nodes", watched)
    for tile in (True, False):
        if not tile:
            monkeypatch.setattr(projection_op, "can_tile", lambda *_: False)
        matcher = small_matcher(name).train()
        logits = matcher(batch)
        some_loss(logits).backward()
        gradients = {key: p.grad for key, p in matcher.named_parameters()}
        results.append({"logits": logits.detach(), **gradients, **dict(matcher.named_buffers())})
    assert set(tiled) == {True}
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-12)


def test_only_full_precision_on_a_cpu_is_tiled() -> None:
    x = torch.zeros(2)
    assert can_tile(x, x)
    assert can_tile(x.double(), x.double())
    assert not can_tile(x, x.double())
    assert not can_tile(x.bfloat16(), x.bfloat16())
    assert not can_tile(x, torch.zeros(2, device="meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_tile(x, x)


@pytest.mark.parametrize("name", ["saf", "sgr"])
def test_autocast_computes_by_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_projection, "tiled_nodes", lambda *_: pytest.fail("was tiled"))
    matcher, batch = (
        small_matcher(name, dtype=torch.float32).eval(),
        make_items(dtype=torch.float32).batch(name),
    )
    with torch.autocast("cpu", torch.bfloat16):
        mixed = matcher(batch)
    assert torch.isfinite(mixed).all()
