"""GSC's structure loss and consistency against loops, by hand, and against wrong twins."""

from __future__ import annotations

import math

import pytest
import torch

from oracles import gsc as oracle
from sremkit.objectives.structure import structure_consistency, structure_loss


def case(b: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images, texts = torch.randn(2, b, b, dtype=torch.float64, generator=generator)
    return images, texts, torch.rand(b, dtype=torch.float64, generator=generator)


def test_the_loss_matches_the_oracle() -> None:
    images, texts, label = case()
    expected = oracle.structure(images.tolist(), texts.tolist(), label.tolist(), 0.7)
    assert structure_loss(images, texts, label, temperature=0.7).tolist() == pytest.approx(expected, rel=1e-10)


def test_the_consistency_matches_the_oracle() -> None:
    images, texts, label = case()
    expected = oracle.consistency(images.tolist(), texts.tolist(), label.tolist())
    assert structure_consistency(images, texts, label).tolist() == pytest.approx(expected, rel=1e-10)


def test_by_hand() -> None:
    # A = I, B = [[1, 0], [1, 1]], labels 1 and 1/2: T = [[1, 1], [0, 1/4]].
    # Rows: -ln(e / (e + e)) = ln 2; -ln(e^(1/4) / (1 + e^(1/4))) = ln(1 + e^(-1/4)).
    # Rows of A y: (1, 0), (0, 1/2); of B y: (1, 0), (1, 1/2). Cosines: 1, and 1/4 / (1/2 sqrt(5/4)) = 1 / sqrt 5.
    images, texts = torch.eye(2, dtype=torch.float64), torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    label = torch.tensor([1.0, 0.5], dtype=torch.float64)
    found = structure_loss(images, texts, label, temperature=1.0).tolist()
    assert found == pytest.approx([math.log(2), math.log(1 + math.exp(-0.25))], rel=1e-12)
    assert structure_consistency(images, texts, label).tolist() == pytest.approx([1.0, 1 / math.sqrt(5)], rel=1e-12)


def test_equal_structures_are_consistent_and_labels_of_0_hide_a_pair() -> None:
    images, texts, label = case()
    assert structure_consistency(images, images, label).tolist() == pytest.approx([1.0] * 6, rel=1e-12)
    label[2] = 0.0
    changed = texts.clone()
    changed[:, 2] = 9.0
    torch.testing.assert_close(
        structure_loss(images, texts, label, temperature=1.0), structure_loss(images, changed, label, temperature=1.0)
    )


def test_masked_texts_are_no_other_places() -> None:
    images, texts, label = case(5)
    valid = ~torch.zeros(5, 5, dtype=torch.bool)
    valid[0, 1:] = False  # nothing to be told apart from
    found = structure_loss(images, texts, label, temperature=1.0, valid=valid)
    assert found[0] == 0
    assert (found[1:] > 0).all()


def test_gradients() -> None:
    images, texts, label = case(4)
    inputs = (images.requires_grad_(), texts.requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: structure_loss(a, b, label, temperature=0.5), inputs)
    none = structure_loss(images, texts, torch.zeros(4, dtype=torch.float64), temperature=0.5)
    assert none.tolist() == pytest.approx([math.log(4)] * 4)
    with pytest.raises(ValueError, match="temperature must be positive"):
        structure_loss(images, texts, label, temperature=0.0)


def agreement(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(a @ b.T / 0.7, torch.arange(len(a)), reduction="none")


TWINS = {
    "labels once": lambda a, b, y: agreement(a * y, b),
    "labels of the rows": lambda a, b, y: agreement(a * y[:, None], b * y[:, None]),
    "no labels": lambda a, b, _: agreement(a, b),
    "text columns": lambda a, b, y: agreement(a * y, (b * y).T),
    "texts as queries": lambda a, b, y: agreement(b * y, a * y),
    "temperature multiplies": lambda a, b, y: structure_loss(a, b, y, temperature=1 / 0.7),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_wrong_twins(twin) -> None:
    images, texts, label = case()
    expected = oracle.structure(images.tolist(), texts.tolist(), label.tolist(), 0.7)
    assert twin(images, texts, label).tolist() != pytest.approx(expected, rel=1e-6)
