"""SCAN through the kernel equals plain PyTorch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from small_models import Items, make_items, small_matcher, some_loss
from sremkit import ops

pytest.importorskip("triton", reason="the kernels need Triton")

pytestmark = pytest.mark.usefixtures("_without_cudnn")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def logits_and_gradients(
    items: Items, *, backend: str, dtype: torch.dtype, max_total_words: int | None = None, **options
) -> dict[str, Tensor]:
    """The encoders are plain PyTorch, so that only the comparison differs."""
    matcher = small_matcher("scan-t2i", **options).to(DEVICE, dtype)
    batch = items.batch("scan-t2i").to(DEVICE)
    batch = replace(batch, images=batch.images.to(dtype))
    with ops.use("plain"):
        images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
    with ops.use(backend):
        logits = matcher.compare(images, replace(texts, max_total_parts=max_total_words))
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


def test_spare_rows_change_nothing() -> None:
    items = make_items(4)
    right = logits_and_gradients(items, backend="plain", dtype=torch.float64)
    found = logits_and_gradients(
        items, backend="triton", dtype=torch.float32, max_total_words=sum(map(len, items.captions)) + 5
    )
    assert_near(found, right)


def test_the_kernel_is_really_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else the tests above would compare plain PyTorch with itself."""
    from sremkit.ops.triton import cross_attention

    called = []
    whole = cross_attention.packed_attention

    def noted(*inputs: Tensor, **options: float) -> Tensor:
        called.append(options["scale"])
        return whole(*inputs, **options)

    monkeypatch.setattr(cross_attention, "packed_attention", noted)
    logits_and_gradients(make_items(2), backend="plain", dtype=torch.float32)
    assert called == []
    logits_and_gradients(make_items(2), backend="triton", dtype=torch.float32, attention_scale=7.0)
    assert called == [7.0]


def test_captions_too_long_for_the_kernel_take_the_plain_path() -> None:
    items = make_items(3, words=(2, 70))
    found = logits_and_gradients(items, backend="triton", dtype=torch.float32)
    right = logits_and_gradients(items, backend="plain", dtype=torch.float32)
    assert all(torch.equal(found[key], right[key]) for key in right)


def test_autocast_does_not_change_the_scores() -> None:
    items, logits = make_items(4, dtype=torch.float32), []
    matcher = small_matcher("scan-t2i", dtype=torch.float32).to(DEVICE)
    batch = items.batch("scan-t2i").to(DEVICE)
    with ops.use("plain"), torch.no_grad():
        images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
    for enabled in (False, True):
        with ops.use("triton"), torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=enabled):
            logits.append(matcher.compare(images, texts))
    assert torch.equal(*logits)
