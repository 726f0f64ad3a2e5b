"""The block-wise computation: any block size gives the same numbers."""

from __future__ import annotations

import pytest
import torch

from logit_cases import random_logits
from sremkit import SREM
from sremkit.objectives.fast import blocks
from sremkit.objectives.fast.blocks import RowBlocks, first_max

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
    monkeypatch.setattr(blocks, "_rows_per_block", lambda matrix: rows)
    assert len(list(RowBlocks(F))) == -(-130 // rows) > 1
    parts, gradient = terms_and_gradient(F, ids)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("ids", SHARED_IMAGES.values(), ids=SHARED_IMAGES.keys())
def test_blocks_find_the_clean_pairs_with_and_without_the_bound_by_the_maximum(
    ids: torch.Tensor | None, monkeypatch
) -> None:
    """Energies are only computed where the maximum of a row does not decide."""
    F = random_logits(130) - 2
    F.diagonal().add_(torch.linspace(0, 9, 130, dtype=F.dtype))
    computed, logsumexp = [], torch.Tensor.logsumexp
    for threshold in (-6.0, -3.0, 0.0, 3.0):
        criterion = SREM(threshold=threshold)
        whole = criterion(F, image_ids=ids)
        with monkeypatch.context() as patched:
            patched.setattr(blocks, "_rows_per_block", lambda matrix: 40)
            patched.setattr(torch.Tensor, "logsumexp", lambda x, dim: computed.append(len(x)) or logsumexp(x, dim=dim))
            parts = criterion(F, image_ids=ids)
        assert torch.equal(parts.clean_i2t, whole.clean_i2t)
        assert torch.equal(parts.clean_t2i, whole.clean_t2i)
        torch.testing.assert_close(parts.energy_i2t, whole.energy_i2t, rtol=1e-12, atol=0)
    assert 0 < sum(computed) < 4 * 2 * 130  # some rows were undecided, and not all


def test_the_gradient_is_scaled_by_the_upstream_gradient() -> None:
    F = random_logits(12).requires_grad_()
    (once,) = torch.autograd.grad(SREM()(F).total, F)
    (thrice,) = torch.autograd.grad(3 * SREM()(F).total, F)
    torch.testing.assert_close(thrice, 3 * once, rtol=1e-12, atol=0)


def test_large_matrices_are_split_and_small_ones_are_one_block() -> None:
    assert RowBlocks(torch.empty(128, 128)).rows_per_block == 128
    large = torch.empty(1 << 14, device="meta").expand(1 << 14, 1 << 14)
    assert RowBlocks(large).rows_per_block < 1 << 14


@pytest.mark.parametrize("columns", [1, 5, 64, 100, 128, 192])
def test_the_first_maximum_equals_that_of_torch(columns: int) -> None:
    generator = torch.Generator().manual_seed(0)
    few_values = torch.randint(0, 4, (50, columns), generator=generator).float()  # many ties
    for block in (few_values, torch.randn(50, columns, generator=generator)):
        value, index = first_max(block)
        expected = block.max(dim=1)
        assert torch.equal(value, expected.values)
        assert torch.equal(index, (block == expected.values[:, None]).int().argmax(1))
        transposed = first_max(block.T.contiguous().T)
        assert torch.equal(transposed[0], value)
        assert torch.equal(transposed[1], index)


def test_rows_and_columns_are_loaded_and_written() -> None:
    matrix = torch.arange(49.0).reshape(7, 7)
    target = torch.empty(7, 7)
    for walk in (RowBlocks(matrix).T, RowBlocks(matrix)):
        for rows in walk:
            block, scratch, *_ = walk.buffers(rows)
            loaded = walk.load(rows, into=block, scratch=scratch).clone()
            assert torch.equal(loaded, (matrix.T if walk.transposed else matrix)[rows])
            assert torch.equal(walk.read_rows(rows), loaded)
            walk.write_gradient(target, rows, loaded, scratch=scratch)
    assert torch.equal(target, 2 * matrix)  # columns are written, rows are added
