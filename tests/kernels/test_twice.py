"""Gradients of gradients by way of a plain twin: of inputs in several number formats too."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.kernels.twice import recorded_gradients


def plain(x: Tensor, weight: Tensor, lengths: Tensor) -> Tensor:
    return F.linear(x, weight).square() * lengths[:, None]


def test_inputs_of_several_number_formats_have_second_derivatives() -> None:
    """y = l (w x)²: dy/dx = 2 l w² x, and the derivative of that by w is 4 l w x."""
    x = torch.tensor([[0.5], [-1.5]], dtype=torch.bfloat16, requires_grad=True)
    weight = torch.tensor([[3.0]], requires_grad=True)
    lengths = torch.tensor([1, 2])
    by_x, by_weight, by_lengths = recorded_gradients(
        plain, [x, weight, lengths], torch.ones(2, 1), [True, True, False]
    )
    assert by_x is not None
    assert by_weight is not None
    assert by_lengths is None
    assert by_x.dtype == torch.bfloat16
    torch.testing.assert_close(by_x.float(), torch.tensor([[9.0], [-54.0]]))  # 2 · 9 · 0.5, 2 · 2 · 9 · -1.5
    torch.testing.assert_close(by_weight, torch.tensor([[28.5]]))  # 2 · 3 · (0.25 + 2 · 2.25)
    (twice,) = torch.autograd.grad(by_x.float().sum(), weight)
    torch.testing.assert_close(twice, torch.tensor([[-30.0]]))  # 4 · 3 · (0.5 - 2 · 1.5)
