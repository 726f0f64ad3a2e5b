"""Layers that backbones share."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from small_models import make_items, small_matcher, some_loss, weights_of
from sremkit.models.backbones.saf import CaptionBatchNorm
from sremkit.models.encoding import CPU_CHUNK, in_text_order, item_slices, length_chunks
from sremkit.models.ensemble import logit_of_mean
from sremkit.models.layers.encoders import LogitScale
from sremkit.models.layers.masking import MaskedBatchNorm, masked_mean
from sremkit.models.layers.pooling import GeneralizedPooling
from sremkit.models.matcher import Encoded
from sremkit.ops.cross_attention import divide_by_norm, gram_matrix
from sremkit.ops.functional import l2_normalize, masked_softmax


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def test_the_logit_of_a_cosine_starts_at_ten_times_its_distance_from_one_half() -> None:
    # 10 · 0.9 - 5 = 4,  10 · 0.5 - 5 = 0,  10 · 0.1 - 5 = -4
    logits = LogitScale().double()(torch.tensor([0.9, 0.5, 0.1], dtype=torch.float64))
    # The parameters are born in float32, hence seven digits.
    torch.testing.assert_close(logits, torch.tensor([4.0, 0.0, -4.0], dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_a_scale_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="scale must be positive, got 0"):
        LogitScale(scale=0.0)


def test_a_zero_vector_stays_zero_with_a_finite_gradient() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    l2_normalize(x).sum().backward()
    assert torch.equal(l2_normalize(x), torch.zeros(2, 3))
    assert torch.isfinite(x.grad).all()


def test_softmax_and_mean_over_nothing_are_zero_with_finite_gradients() -> None:
    x = random(2, 3).requires_grad_()
    mask = torch.tensor([[True, True, False], [False, False, False]])
    weights, mean = masked_softmax(x, mask, dim=1), masked_mean(x, mask, dim=1)
    (weights.square().sum() + mean.sum()).backward()
    assert torch.equal(weights[1], torch.zeros(3, dtype=torch.float64))
    assert mean[1] == 0
    # exp(a) / (exp(a) + exp(b)) = 1 / (1 + exp(b - a))
    assert weights[0, 0].item() == pytest.approx(1 / (1 + math.exp((x[0, 1] - x[0, 0]).item())), rel=1e-12)
    assert torch.isfinite(x.grad).all()
    assert torch.equal(x.grad[1], torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_with_everything_present_the_masked_norm_is_pytorchs(training: bool) -> None:
    x, mask = random(4, 6, 3), torch.ones(4, 6, 1, dtype=torch.bool)
    ours, theirs = MaskedBatchNorm(3).double(), nn.BatchNorm1d(3).double()
    for norm in (ours, theirs):
        norm.train(training)
        norm.running_mean.copy_(torch.tensor([0.1, -0.2, 0.3]))
        norm.running_var.copy_(torch.tensor([0.5, 1.5, 2.0]))
    expected = theirs(x.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(ours(x, mask), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-12, atol=0)


def test_absent_items_do_not_enter_the_masked_norm_and_an_absent_channel_keeps_its_estimates() -> None:
    x = random(4, 2)
    x[2:, 0] = 1e9  # absent in channel 0
    mask = torch.tensor([[True, False], [True, False], [False, False], [False, False]])
    norm, alone = MaskedBatchNorm(2).double(), nn.BatchNorm1d(1).double()
    out = norm(x, mask)
    torch.testing.assert_close(out[:2, :1], alone(x[:2, :1]), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(norm.running_mean[:1], alone.running_mean, rtol=1e-10, atol=0)
    assert norm.running_mean[1] == 0
    assert norm.running_var[1] == 1


def test_per_caption_statistics_equal_one_call_of_pytorchs_norm_after_the_other() -> None:
    """The original evaluates one caption at a time, so its running estimates move once for each caption."""
    lengths = [4, 2, 5, 3]
    x = random(3, 4, 5)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    ours, theirs = CaptionBatchNorm("caption").double(), nn.BatchNorm1d(1).double()
    out = ours(x.masked_fill(~mask, 1e6), mask)
    for j, length in enumerate(lengths):
        of_caption = theirs(x[:, j, :length].reshape(-1, 1)).reshape(3, length)
        torch.testing.assert_close(out[:, j, :length], of_caption, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-12, atol=0)


def test_whole_batch_statistics_equal_one_call_of_pytorchs_norm() -> None:
    x, mask = random(3, 4, 5), torch.ones(4, 5, dtype=torch.bool)
    ours, theirs = CaptionBatchNorm("batch").double(), nn.BatchNorm1d(1).double()
    torch.testing.assert_close(ours(x, mask).reshape(-1, 1), theirs(x.reshape(-1, 1)), rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-12, atol=0)


def test_other_statistics_are_refused() -> None:
    with pytest.raises(ValueError, match="statistics must be 'caption' or 'batch', got 'image'"):
        CaptionBatchNorm("image")


def test_the_logit_of_a_mean_by_hand_and_far_out() -> None:
    # σ(0) = 1/2, σ(log 3) = 3/4, mean 5/8, logit log((5/8) / (3/8)) = log(5/3)
    first = torch.tensor([0.0, 100.0, 800.0, -60.0], dtype=torch.float64)
    second = torch.tensor([math.log(3), 100.0, -800.0, -50.0], dtype=torch.float64)
    # Equal logits keep their value and opposite ones cancel; far out σ(x) = e^x, so the last is
    # log((e^-60 + e^-50) / 2) = -50 + log((1 + e^-10) / 2)
    expected = [math.log(5 / 3), 100.0, 0.0, -50 + math.log((1 + math.exp(-10)) / 2)]
    torch.testing.assert_close(
        logit_of_mean(first, second), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )


def test_attention_to_nothing_is_finite_with_finite_gradients() -> None:
    contexts = torch.zeros(1, 3, 4, dtype=torch.float64, requires_grad=True)  # an image without any region
    attention = torch.zeros(1, 3, 10, dtype=torch.float64, requires_grad=True)
    scaled = divide_by_norm(attention, gram_matrix(contexts))
    scaled.sum().backward()
    assert torch.equal(scaled, torch.zeros_like(scaled))
    assert torch.isfinite(contexts.grad).all()
    assert torch.isfinite(attention.grad).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_gram_matrix_of_half_precision_is_exact_for_the_rounded_vectors(dtype: torch.dtype) -> None:
    rounded = random(2, 3, 40).to(dtype).requires_grad_()
    exact = rounded.detach().double().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):  # which would round it
        found = gram_matrix(rounded)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), gram_matrix(exact), rtol=1e-6, atol=1e-5)
    upstream = random(2, 3, 3, seed=1)  # not symmetric, as gradients need not be
    found.backward(upstream.float())
    gram_matrix(exact).backward(upstream)
    assert rounded.grad.dtype == dtype
    torch.testing.assert_close(rounded.grad.double(), exact.grad, rtol=2e-2, atol=5e-2)
    wrong = 2 * upstream @ exact.detach()  # what it would be for a symmetric one
    assert (wrong - exact.grad).abs().max() > 0.5


def test_attention_divided_by_the_norm_attends_to_unit_vectors() -> None:
    contexts, attention = random(2, 3, 4), random(2, 3, 5, seed=1).softmax(dim=1)
    found = torch.einsum("ckq,ckd->cqd", divide_by_norm(attention, gram_matrix(contexts)), contexts)
    # x / (‖x‖ + 1e-8) has a norm of 1 - 1e-8 / ‖x‖
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(2, 5, dtype=torch.float64), rtol=1e-6, atol=0)


def test_generalized_pooling_keeps_equal_vectors_and_lies_between_least_and_largest() -> None:
    torch.manual_seed(0)
    pool = GeneralizedPooling(position_dim=6).double()
    mask = torch.arange(4) < torch.tensor([[4], [2], [1]])
    x = random(3, 4, 2)
    equal = random(3, 1, 2, seed=1).expand(3, 4, 2)
    torch.testing.assert_close(pool(equal, mask), equal[:, 0], rtol=1e-12, atol=0)
    low = x.masked_fill(~mask.unsqueeze(-1), torch.inf).amin(dim=1)
    high = x.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
    pooled = pool(x, mask)
    assert (pooled >= low - 1e-12).all()
    assert (pooled <= high + 1e-12).all()
    torch.testing.assert_close(pooled[2], x[2, 0], rtol=1e-12, atol=0)


def test_generalized_pooling_is_invariant_to_order() -> None:
    torch.manual_seed(0)
    pool, x = GeneralizedPooling().double(), random(1, 5, 3)
    mask = torch.ones(1, 5, dtype=torch.bool)
    torch.testing.assert_close(pool(x[:, [4, 2, 0, 1, 3]], mask), pool(x, mask), rtol=1e-12, atol=0)


def encoded(lengths: list[int]) -> Encoded:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Encoded(random(*mask.shape, 2).masked_fill(~mask.unsqueeze(-1), 0.0), mask, random(len(lengths), 2))


def test_one_long_text_does_not_pad_the_others_and_the_order_is_restored() -> None:
    texts = encoded([3, 200, 2, 3, 1])
    found = list(length_chunks(texts, floats_per_word=CPU_CHUNK // 400))  # two texts of 200 words fill a chunk
    widths = [some.parts()[1].shape[1] for some, _ in found]
    assert [columns.tolist() for _, columns in found] == [[1, 0], [3, 2, 4]]
    assert widths == [200, 3]
    numbers = [columns.double().unsqueeze(0) for _, columns in found]
    restored = in_text_order(numbers, [columns for _, columns in found])
    assert restored.tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0]]


def test_a_text_much_shorter_than_the_longest_of_its_chunk_begins_a_new_one() -> None:
    texts = encoded([10, 7, 9, 8, 10, 1])
    chunks = length_chunks(texts, floats_per_word=1, min_fill=0.8)  # 8 of 10 is enough, 1 of 7 is not
    assert [columns.tolist() for _, columns in chunks] == [[0, 4, 2, 3], [1], [5]]


def test_encodings_are_joined_padded_trimmed_and_indexed() -> None:
    short, long = encoded([2, 1]), encoded([3])
    both = Encoded.concatenate([short, long])
    assert both.mask.tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    assert len(both) == 3
    assert both.lengths.tolist() == [2, 1, 3]
    assert torch.equal(both[:2].trimmed().local, short.local)
    assert torch.equal(both[torch.tensor([2])].pooled, long.pooled)


def test_encodings_of_another_backbone_are_refused() -> None:
    with pytest.raises(ValueError, match="without local vectors"):
        Encoded(pooled=random(2, 2)).parts()
    with pytest.raises(ValueError, match="without global vectors"):
        Encoded(local=random(2, 2, 2), mask=torch.ones(2, 2, dtype=torch.bool)).whole()


@pytest.mark.parametrize(
    ("count", "floats", "sizes"),
    [
        (5, CPU_CHUNK, [1] * 5),
        (5, CPU_CHUNK // 4, [3, 2]),  # four at most, in nearly equal parts
        (5, 1, [5]),
        (5, 2 * CPU_CHUNK, [1] * 5),  # one in any case
        (70_000, 0, [23_334, 23_334, 23_332]),  # at most as many as one launch takes
    ],
)
def test_items_are_taken_in_nearly_equal_slices(count: int, floats: int, sizes: list[int]) -> None:
    items = torch.arange(count)
    parts = [items[some] for some in item_slices(items, floats_per_item=floats)]
    assert [len(part) for part in parts] == sizes
    assert torch.equal(torch.cat(parts), items)


@pytest.mark.parametrize("name", ["sgr", "imram"])
def test_second_derivatives_pass_through_recomputed_parts(name: str) -> None:
    """Methods that learn their own weights differentiate through a training step (MSCN's meta step)."""
    from oracles import imram, sgraf

    items, matcher = make_items(3), small_matcher(name).eval()
    w = weights_of(matcher)
    if name == "sgr":
        expected, _ = sgraf.logits(w, items.images, items.captions, module="sgr")
    else:
        options = {"direction": "full", "num_steps": 3, "attention_scale": 9.0, "unit_memory": False}
        expected = imram.logits(w, items.images, items.captions, **options)
    parameters = [p for key, p in matcher.named_parameters() if "gru" not in key and "embed" not in key]

    def curvature(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = torch.autograd.grad(some_loss(logits), parameters, create_graph=True, allow_unused=True)
        length = sum(g.square().sum() for g in first if g is not None)
        return torch.autograd.grad(length, parameters, allow_unused=True)

    for got, right in zip(curvature(matcher(items.batch())), curvature(expected), strict=True):
        if right is not None and got is not None:
            torch.testing.assert_close(got, right, rtol=1e-7, atol=1e-9 * max(1.0, float(right.abs().max())))
