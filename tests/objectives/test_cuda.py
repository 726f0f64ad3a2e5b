"""The objective on a CUDA device: the same numbers, full float32, and no waiting."""

from __future__ import annotations

import pytest
import torch

from logit_cases import random_logits
from sremkit import SREM

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::UserWarning:torch"),
]
IDS = torch.arange(128) // 3


def total_and_gradient(criterion, F: torch.Tensor, **options) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = F.clone().requires_grad_()
    total = criterion(leaf, **options).total
    total.backward()
    return total.detach(), leaf.grad


@pytest.mark.parametrize("reading", ["normalized", "printed"])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_device_agrees_with_the_cpu(reading: str, compiled: bool) -> None:
    F, criterion = random_logits(128, lift=6.0), SREM(reading=reading)
    on_device = torch.compile(criterion, fullgraph=True) if compiled else criterion
    expected = total_and_gradient(criterion, F, image_ids=IDS)
    found = total_and_gradient(on_device, F.float().cuda(), image_ids=IDS.cuda())
    torch.testing.assert_close(found[0].cpu().double(), expected[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(found[1].cpu().double(), expected[1], rtol=1e-3, atol=1e-7)


def test_nothing_synchronizes_with_the_device() -> None:
    F, ids = random_logits(128).float().cuda().requires_grad_(), IDS.cuda()
    criterion = SREM(check_finite=False)
    criterion(F, image_ids=ids).total.backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for warmup in (False, True):
            criterion(F, image_ids=ids, warmup=warmup).total.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("switch", ["new", "old"])
def test_products_of_embeddings_are_full_float32_even_where_tf32_is_allowed(switch: str) -> None:
    from sremkit.objectives.logits import product

    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(128, 1024, generator=generator).cuda() for _ in range(2))
    exact = left.double() @ right.double().T
    matmul = torch.backends.cuda.matmul
    name, rounded = ("fp32_precision", "tf32") if switch == "new" else ("allow_tf32", True)
    if not hasattr(matmul, name):
        pytest.skip(f"this torch has no torch.backends.cuda.matmul.{name}")
    before = getattr(matmul, name)
    setattr(matmul, name, rounded)
    try:
        assert (left @ right.T - exact).abs().max() > 1e-3  # TF32 is really on
        assert (product(left, right.T) - exact).abs().max() < 1e-3
        assert getattr(matmul, name) == rounded
    finally:
        setattr(matmul, name, before)
