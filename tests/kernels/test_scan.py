"""SCAN whose words attend through the kernel equals the plain one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from small_models import Items, make_items, small_matcher, some_loss
from sremkit import kernels
from sremkit.kernels.packing import by_caption, pack

pytest.importorskip("triton", reason="the kernels need Triton")

pytestmark = pytest.mark.usefixtures("_without_cudnn")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def logits_and_gradients(
    items: Items, *, backend: str, dtype: torch.dtype, most_words: int | None = None, **options
) -> dict[str, Tensor]:
    """The encoders go the plain way, so that only the comparison differs."""
    matcher = small_matcher("scan-t2i", **options).to(DEVICE, dtype)
    batch = items.batch("scan-t2i").to(DEVICE)
    batch = replace(batch, images=batch.images.to(dtype))
    with kernels.use("plain"):
        images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
    with kernels.use(backend):
        logits = matcher.compare(images, replace(texts, most_parts=most_words))
    some_loss(logits).backward()
    gradients = {key: p.grad for key, p in matcher.named_parameters()}
    return {key: t.detach().double() for key, t in {"logits": logits, **gradients}.items()}


def assert_near(found: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Within 1e-4 of each tensor's largest number, or of 0.01 if that is more."""
    assert found.keys() == right.keys()
    for key, value in right.items():
        error = (found[key] - value).abs().max() / value.abs().max().clamp_min(0.01)
        assert error < 1e-4, f"{key} is off by {error:.1e}"


@pytest.mark.parametrize("aggregation", ["logsumexp", "mean"])
@pytest.mark.parametrize("sizes", [{}, {"regions": (1, 1)}, {"words": (1, 1)}, {"words": (1, 30)}], ids=str)
def test_logits_and_gradients_by_the_kernel_equal_the_plain_ones(sizes: dict, aggregation: str) -> None:
    items = make_items(4, **sizes)
    right = logits_and_gradients(items, backend="plain", dtype=torch.float64, aggregation=aggregation)
    found = logits_and_gradients(items, backend="triton", dtype=torch.float32, aggregation=aggregation)
    assert_near(found, right)


def test_rows_that_belong_to_no_caption_change_nothing() -> None:
    items = make_items(4)
    right = logits_and_gradients(items, backend="plain", dtype=torch.float64)
    found = logits_and_gradients(
        items, backend="triton", dtype=torch.float32, most_words=sum(map(len, items.captions)) + 5
    )
    assert_near(found, right)


def test_the_kernel_is_really_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else the tests above would compare the plain way with itself."""
    from sremkit.kernels import region_attention

    called = []
    whole = region_attention.region_attention

    def noted(*inputs: Tensor, **options: float) -> Tensor:
        called.append(options["scale"])
        return whole(*inputs, **options)

    monkeypatch.setattr(region_attention, "region_attention", noted)
    logits_and_gradients(make_items(2), backend="plain", dtype=torch.float32)
    assert called == []
    logits_and_gradients(make_items(2), backend="triton", dtype=torch.float32, attention_scale=7.0)
    assert called == [7.0]


def test_captions_too_long_for_the_kernel_go_the_plain_way() -> None:
    items = make_items(3, words=(2, 70))
    found = logits_and_gradients(items, backend="triton", dtype=torch.float32)
    right = logits_and_gradients(items, backend="plain", dtype=torch.float32)
    assert all(torch.equal(found[key], right[key]) for key in right)


def test_half_precision_is_not_let_in() -> None:
    items, logits = make_items(4, dtype=torch.float32), []
    matcher = small_matcher("scan-t2i", dtype=torch.float32).to(DEVICE)
    batch = items.batch("scan-t2i").to(DEVICE)
    with kernels.use("plain"), torch.no_grad():
        images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
    for enabled in (False, True):
        with kernels.use("triton"), torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=enabled):
            logits.append(matcher.compare(images, texts))
    assert torch.equal(*logits)


def test_packed_numbers_go_back_to_their_captions() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    for most in (None, 6, 8):  # words 0 1 | 2 | 3 4 5, and what fills up
        found, present = by_caption(torch.arange(8.0).unsqueeze(0), pack(mask, most=most))
        assert torch.equal(present, mask)
        assert found.masked_fill(~mask, -1).tolist() == [[[0, 1, -1], [2, -1, -1], [3, 4, 5]]]


def test_words_with_gaps_between_them_are_packed_and_found_again() -> None:
    mask = torch.tensor([[False, True, True], [True, False, True]])
    for most in (None, 4, 6):
        packing = pack(mask, most=most)
        assert packing.places[:4].tolist() == [1, 2, 3, 5]
        found, present = by_caption(torch.arange(8.0).unsqueeze(0), packing)
        assert [row[:2] for row in found[0].tolist()] == [[0, 1], [2, 3]]
        assert present.sum(dim=1).tolist() == [2, 2]
