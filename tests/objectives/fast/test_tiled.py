"""The objective in blocks of logits that are computed on the way: SREM's numbers, without its matrix."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from objectives.fast.tiled_processes import LargestTensor
from sremkit import SREM, Terms
from sremkit.objectives.fast.tiled import TiledSREM, add_product

NAMES = [
    "energy_i2t", "energy_t2i", "clean_i2t", "clean_t2i", "weight_i2t", "weight_t2i", "active_i2t", "active_t2i",
]  # fmt: skip


def embeddings(b: int, *, d: int = 12, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    """Unit vectors of pairs that mostly belong together, a scale and a bias."""
    g = torch.Generator().manual_seed(seed)
    texts = torch.randn(b, d, generator=g, dtype=torch.float64)
    images = texts + 0.9 * torch.randn(b, d, generator=g, dtype=torch.float64)
    images[: b // 4] = torch.randn(b // 4, d, generator=g, dtype=torch.float64)  # wrong pairs
    units = [x / x.norm(dim=1, keepdim=True) for x in (images, texts)]
    return [x.to(dtype) for x in (*units, torch.tensor(9.0), torch.tensor(-4.0))]


def terms_and_gradients(criterion: SREM, given: list[Tensor], **options) -> tuple[Terms, list[Tensor]]:
    leaves = [x.clone().requires_grad_() for x in given]
    out = criterion.from_embeddings(*leaves, **options)
    return out, list(torch.autograd.grad(2.5 * out.total, leaves))


def assert_same(tiled: SREM, plain: SREM, given: list[Tensor], *, rtol: float, **options) -> None:
    (found, found_gradients), (right, right_gradients) = (
        terms_and_gradients(criterion, given, **options) for criterion in (tiled, plain)
    )
    close = {"rtol": rtol, "atol": rtol}
    torch.testing.assert_close(found.total, right.total, **close)
    torch.testing.assert_close(found.parts, right.parts, **close)
    for name in NAMES:
        torch.testing.assert_close(getattr(found, name), getattr(right, name), **close)
    for x, y in zip(found_gradients, right_gradients, strict=True):
        assert (x - y).norm() <= rtol * y.norm().clamp_min(0.01)  # in the warm-up the bias has no effect


IDS = {"no ids": None, "in threes": torch.arange(50) // 3, "one image": torch.zeros(50, dtype=torch.long)}


@pytest.mark.parametrize("warmup", [False, True], ids=["", "warmup"])
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("rows", [1, 7, 50])
def test_every_block_size_equals_srem(rows: int, ids: str, warmup: bool) -> None:
    given = embeddings(50)
    tiled = TiledSREM(block_elements=50 * rows)
    assert_same(tiled, SREM(), given, rtol=1e-10, warmup=warmup, image_ids=IDS[ids])


@pytest.mark.parametrize(
    "settings",
    [
        {"filtration": False},
        {"weighting": False},
        {"complementary": False},
        {"rectification": False},
        {
            "threshold": -2.0,
            "energy_weight": 0.3,
            "sharpness": 3.0,
            "margin": 0.5,
            "complementary_weight": 0.2,
        },
    ],
    ids=str,
)
def test_every_setting_equals_srem(settings: dict) -> None:
    given = embeddings(40, seed=1)
    assert_same(TiledSREM(block_elements=300, **settings), SREM(**settings), given, rtol=1e-10)


def test_the_case_has_clean_and_other_pairs_inside_the_hinge() -> None:
    """Or else the tests above would compare zeros."""
    out, _ = terms_and_gradients(SREM(), embeddings(50))
    assert 5 < out.clean_i2t.sum() < 45
    assert out.active_i2t.any()
    assert all(part > 0 for part in out.parts.values())


def test_float32_agrees_with_srem_to_five_digits() -> None:
    given = embeddings(300, d=32, dtype=torch.float32)
    assert_same(TiledSREM(block_elements=300 * 64), SREM(), given, rtol=1e-5)


def test_a_single_pair_and_two_pairs() -> None:
    for b in (1, 2):
        assert_same(TiledSREM(block_elements=b), SREM(), embeddings(b), rtol=1e-10)


def test_half_precision_embeddings_are_multiplied_in_float32_under_autocast() -> None:
    images, texts, *_ = embeddings(20, dtype=torch.bfloat16)
    expected = SREM().from_embeddings(images.float(), texts.float(), 5.0, -1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = TiledSREM(block_elements=60).from_embeddings(images, texts, 5.0, -1.0)
    torch.testing.assert_close(found.total, expected.total, rtol=1e-6, atol=0)


def test_without_gradients_none_is_computed() -> None:
    with torch.no_grad():
        out = TiledSREM().from_embeddings(*embeddings(9))
    assert not out.total.requires_grad


def test_add_product_with_keep_0_ignores_the_target() -> None:
    """A buffer holds whatever was left in it, NaN too."""
    left, right = embeddings(4)[0], embeddings(4)[1].T
    target = torch.full((4, 4), torch.nan, dtype=torch.float64)
    assert add_product(target, left, right, keep=0.0) is target
    torch.testing.assert_close(target, left @ right)
    add_product(target, left, right)
    torch.testing.assert_close(target, 2 * left @ right)


def test_logits_give_the_same_as_srem() -> None:
    images, texts, scale, bias = embeddings(9)
    logits = scale * images @ texts.T + bias
    assert torch.equal(TiledSREM()(logits).total, SREM()(logits).total)


def test_logits_with_across_processes_raise() -> None:
    """They are one process's matrix, not the logits of the joined batch."""
    with pytest.raises(RuntimeError, match=r"from_embeddings\(image_emb, text_emb, scale, bias\), or use SREM"):
        TiledSREM(across_processes=True)(torch.eye(4))


def test_unsupported_settings_and_inputs_raise() -> None:
    given = embeddings(6)
    with pytest.raises(ValueError, match="use SREM for reading='printed'"):
        TiledSREM(reading="printed")
    with pytest.raises(ValueError, match="block_elements must be positive, got 0"):
        TiledSREM(block_elements=0)
    with pytest.raises(ValueError, match="one number for each of the 6 pairs"):
        TiledSREM().from_embeddings(*given, image_ids=torch.zeros(5))
    with pytest.raises(ValueError, match="NaN or infinite"):
        TiledSREM().from_embeddings(given[0] * torch.nan, *given[1:])
    with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
        TiledSREM().from_embeddings(*given, weights=1)
    leaves = [x.requires_grad_() for x in given]
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(TiledSREM().from_embeddings(*leaves).total, leaves, create_graph=True)


def test_no_operation_returns_more_than_a_block_of_the_matrix() -> None:
    given = embeddings(200, d=4)
    ids = torch.arange(200) // 2
    for criterion, expected in ((TiledSREM(block_elements=10 * 200), 10 * 200), (SREM(), 200 * 200)):
        with LargestTensor() as seen:
            terms_and_gradients(criterion, given, image_ids=ids)
        assert seen.largest == expected


@pytest.mark.alone
def test_memory_grows_with_the_batch_and_not_with_its_square() -> None:
    program = """
import resource, sys, torch
from sremkit.objectives.fast.tiled import TiledSREM
def megabytes(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def step(b):
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(b, 16, generator=g).requires_grad_() for _ in range(2))
    TiledSREM(block_elements=1 << 19).from_embeddings(x, y, 1.0).total.backward()
step(256)
before = megabytes()
step(3000)
step(6000)
print(megabytes() - before)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    # The matrix alone would be 137 MB; a block is 2 MB, of which four are held. When products made blocks of
    # their own, the numbers kept of each block left no room for the next one where the last had been: 167 MB.
    assert float(run.stdout) < 30
