"""Sizes at which kernels tend to fail, random inputs of them, and the comparison of two implementations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sremkit.ops.packing import Packing, pack

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Case:
    lengths: list[int]
    images: int
    regions: int
    width: int
    sim: int

    @property
    def packing(self) -> Packing:
        mask = torch.arange(max(self.lengths)) < torch.tensor(self.lengths).unsqueeze(1)
        return pack(mask.to(DEVICE))

    @property
    def num_words(self) -> int:
        return sum(self.lengths)

    @property
    def num_nodes(self) -> int:
        return len(self.lengths) + self.num_words


#: Nothing divides anything; one word, one region, one image; more regions and words than a small block; captions
#: of exactly half the longest block and of one more, with and without their global node.
CASES = {
    "odd": Case([3, 7, 1, 5], images=3, regions=5, width=37, sim=19),
    "one-of-all": Case([1], images=1, regions=1, width=16, sim=16),
    "long": Case([40, 2], images=2, regions=18, width=70, sim=33),
    "halves": Case([15, 16, 17, 31], images=2, regions=3, width=20, sim=17),
}


def random(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, generator=g, dtype=torch.float64)).to(DEVICE)


def value_and_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], dtype: torch.dtype, *, seed: int = 99
) -> list[Tensor]:
    """The result of `function` and the gradients by all inputs, upstream of which is random."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    value = function(*leaves)
    upstream = random(*value.shape, seed=seed).to(value.dtype)
    return [value.detach(), *torch.autograd.grad(value, leaves, upstream)]


def assert_near(found: list[Tensor], right: list[Tensor], tolerance: float) -> None:
    """Each tensor within `tolerance` of the right one, as a share of that one's length, or of 0.1 if more."""
    for k, (x, y) in enumerate(zip(found, right, strict=True)):
        assert x.shape == y.shape
        error = ((x.double() - y).norm() / y.norm().clamp_min(0.1)).item()
        assert error < tolerance, f"tensor {k} (0 is the value) is off by {error:.2e}"
