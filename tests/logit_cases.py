"""Logits for the tests of the objective, and the comparison with an oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

# exp of these logits is [[5, 2, 1], [2, 1, 5], [1, 2, 3]], so every hand value is made of small fractions:
# rows sum to 8, 8, 6; sigmoids are x / (1 + x), that is 5/6, 2/3, 1/2, 3/4.
WORKED = torch.tensor([[5.0, 2.0, 1.0], [2.0, 1.0, 5.0], [1.0, 2.0, 3.0]], dtype=torch.float64).log()
FIRST_AND_LAST = torch.tensor([True, False, True])
NONE = torch.tensor([False, False, False])

UNUSUAL = {
    "margin": 0.3,
    "threshold": -2.4,
    "clean_margin": -5.0,
    "noisy_margin": -2.0,
    "sharpness": 2.5,
    "offset": 0.3,
    "energy_weight": 0.2,
    "complementary_weight": 0.7,
}
SREM_SETTINGS = {
    "defaults": {},
    "unusual": UNUSUAL,
    "no filtration": UNUSUAL | {"filtration": False},
    "no weighting": UNUSUAL | {"weighting": False},
    "no complementary": UNUSUAL | {"complementary": False},
    "no rectification": UNUSUAL | {"rectification": False},
    "printed": UNUSUAL | {"reading": "printed"},
    "printed, no rectification": {"reading": "printed", "rectification": False},
    "bare": {"filtration": False, "weighting": False, "complementary": False},
}


def random_logits(size: int, *, seed: int = 0, scale: float = 2.0, lift: float = 2.0) -> Tensor:
    """float64 logits in which some pairs lead their row and some do not."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return scale * noise + lift * torch.eye(size, dtype=torch.float64)


def mixed_logits(size: int = 12) -> Tensor:
    """Logits with clean and noisy pairs in both directions."""
    return random_logits(size, seed=5, scale=1.0, lift=1.8) - 1


def random_flags(size: int, *, seed: int = 0) -> Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(1000 + seed)) < 0.5


def repeated_ids(size: int) -> Tensor:
    """Image numbers of which some occur two or three times and some once."""
    return torch.tensor([0, 1, 0, 2, 3, 3, 3, 4, 5, 6, 1, 7])[:size]


def different(image_ids: Tensor) -> Tensor:
    """(b, b) bool, written out: other images' texts count, and one's own."""
    size = len(image_ids)
    rows = [[i == j or image_ids[i] != image_ids[j] for j in range(size)] for i in range(size)]
    return torch.tensor([[bool(x) for x in row] for row in rows])


def assert_exact(found: Tensor, expected: list | float) -> None:
    """Equal to an oracle's float64 value to ten digits."""
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), rtol=1e-10, atol=0)


def assert_rejected(twin: Callable[..., Tensor], *arguments: object, expected: list | float) -> None:
    """A wrong twin runs, and the oracle distinguishes it from the correct function."""
    found = twin(*arguments)
    assert found.isfinite().all()
    with pytest.raises(AssertionError):
        assert_exact(found.double() if found.dtype == torch.bool else found, expected)
