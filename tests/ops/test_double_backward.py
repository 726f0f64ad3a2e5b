"""Second derivatives through a reference: of inputs of several dtypes too."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.ops.functional import differentiable_gradients


def plain(x: Tensor, weight: Tensor, lengths: Tensor) -> Tensor:
    return F.linear(x, weight).square() * lengths[:, None]


def test_inputs_of_several_dtypes_have_second_derivatives() -> None:
    """y = l (w x)²: dy/dx = 2 l w² x, and the derivative of that by w is 4 l w x."""
    x = torch.tensor([[0.5], [-1.5]], dtype=torch.bfloat16, requires_grad=True)
    weight = torch.tensor([[3.0]], requires_grad=True)
    lengths = torch.tensor([1, 2])
    ctx = SimpleNamespace(needs_input_grad=(True, True, False))
    by_x, by_weight, by_lengths = differentiable_gradients(ctx, plain, [x, weight], torch.ones(2, 1), lengths)
    assert by_x is not None
    assert by_weight is not None
    assert by_lengths is None
    assert by_x.dtype == torch.bfloat16
    torch.testing.assert_close(by_x.float(), torch.tensor([[9.0], [-54.0]]))  # 2 · 9 · 0.5, 2 · 2 · 9 · -1.5
    torch.testing.assert_close(by_weight, torch.tensor([[28.5]]))  # 2 · 3 · (0.25 + 2 · 2.25)
    (second,) = torch.autograd.grad(by_x.float().sum(), weight)
    torch.testing.assert_close(second, torch.tensor([[-30.0]]))  # 4 · 3 · (0.5 - 2 · 1.5)
