"""The block-wise computation: any block size gives the same numbers."""

from __future__ import annotations

import pytest
import torch

from logit_cases import random_logits
from sremkit import SREM
from sremkit.objectives import blocks
from sremkit.objectives.blocks import RowBlocks, first_max

SHARED_IMAGES = {"in threes": torch.arange(130) // 3, "all one image": torch.zeros(130), "none": None}


def terms_and_gradient(F: torch.Tensor, ids: torch.Tensor | None) -> tuple[list[torch.Tensor], torch.Tensor]:
    leaf = F.clone().requires_grad_()
    out = SREM()(leaf, image_ids=ids)
    out.total.backward()
    return [out.total.detach(), out.energy_t2i, out.weight_i2t, out.weight_t2i], leaf.grad


@pytest.mark.parametrize("ids", SHARED_IMAGES.values(), ids=SHARED_IMAGES.keys())
@pytest.mark.parametrize("rows", [1, 7, 64, 129])
def test_the_size_of_a_block_does_not_matter(rows: int, ids: torch.Tensor | None, monkeypatch) -> None:
    F = random_logits(130)
    F[0, 0] = 1.0  # clean when alone, so that it has a gradient of its energy
    whole, whole_gradient = terms_and_gradient(F, ids)
    monkeypatch.setattr(blocks, "_rows_a_block", lambda matrix: rows)
    assert len(list(RowBlocks(F, num_buffers=1))) == -(-130 // rows) > 1
    parts, gradient = terms_and_gradient(F, ids)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("ids", SHARED_IMAGES.values(), ids=SHARED_IMAGES.keys())
def test_blocks_find_the_clean_pairs_whether_or_not_the_greatest_logit_settles_it(
    ids: torch.Tensor | None, monkeypatch
) -> None:
    """Energies are only summed up where the greatest logit of a row leaves the verdict open."""
    F = random_logits(130) - 2
    F.diagonal().add_(torch.linspace(0, 9, 130, dtype=F.dtype))
    looked_at, logsumexp = [], torch.Tensor.logsumexp
    for threshold in (-6.0, -3.0, 0.0, 3.0):
        criterion = SREM(threshold=threshold)
        whole = criterion(F, image_ids=ids)
        with monkeypatch.context() as patched:
            patched.setattr(blocks, "_rows_a_block", lambda matrix: 40)
            patched.setattr(
                torch.Tensor, "logsumexp", lambda x, dim: looked_at.append(len(x)) or logsumexp(x, dim=dim)
            )
            parts = criterion(F, image_ids=ids)
        assert torch.equal(parts.clean_i2t, whole.clean_i2t)
        assert torch.equal(parts.clean_t2i, whole.clean_t2i)
        torch.testing.assert_close(parts.energy_i2t, whole.energy_i2t, rtol=1e-12, atol=0)
    assert 0 < sum(looked_at) < 4 * 2 * 130  # some rows were open in some direction, and not all


def test_the_gradient_is_scaled_by_what_stands_behind_the_objective() -> None:
    F = random_logits(12).requires_grad_()
    (once,) = torch.autograd.grad(SREM()(F).total, F)
    (thrice,) = torch.autograd.grad(3 * SREM()(F).total, F)
    torch.testing.assert_close(thrice, 3 * once, rtol=1e-12, atol=0)


def test_large_matrices_are_taken_in_blocks_and_small_ones_whole() -> None:
    assert RowBlocks(torch.empty(128, 128), num_buffers=0).rows_a_block == 128
    large = torch.empty(1 << 14, device="meta").expand(1 << 14, 1 << 14)
    assert RowBlocks(large, num_buffers=0).rows_a_block < 1 << 14


@pytest.mark.parametrize("columns", [1, 5, 64, 100, 128, 192])
def test_the_first_maximum_is_found_as_torch_finds_it(columns: int) -> None:
    generator = torch.Generator().manual_seed(0)
    few_values = torch.randint(0, 4, (50, columns), generator=generator).float()  # many ties
    for block in (few_values, torch.randn(50, columns, generator=generator)):
        value, place = first_max(block)
        expected = block.max(dim=1)
        assert torch.equal(value, expected.values)
        assert torch.equal(place, (block == expected.values[:, None]).int().argmax(1))
        turned = first_max(block.T.contiguous().T)
        assert torch.equal(turned[0], value)
        assert torch.equal(turned[1], place)


def test_rows_and_columns_are_loaded_and_delivered_to_their_place() -> None:
    matrix = torch.arange(49.0).reshape(7, 7)
    target = torch.empty(7, 7)
    for walk in (RowBlocks(matrix, num_buffers=2).T, RowBlocks(matrix, num_buffers=2)):
        for rows in walk:
            block, scratch = walk.buffers(rows)
            loaded = walk.load(rows, into=block, scratch=scratch).clone()
            assert torch.equal(loaded, (matrix.T if walk.transposed else matrix)[rows])
            assert torch.equal(walk.glance(rows), loaded)
            walk.deliver(target, rows, loaded, scratch=scratch)
    assert torch.equal(target, 2 * matrix)  # columns are written, rows are added
