"""The margin that a pair's soft label earns: nothing for a label of 0, all of it for a label of 1.

    exponential: a (m^y - 1) / (m - 1)     linear: a y     sine: a (sin(pi y - pi / 2) + 1) / 2   [eq:soft-margin]

A doubtful pair is ranked with a smaller demand; the exponential shape believes late.
Reference: Huang et al., Learning with Noisy Correspondence for Cross-modal Matching (NCR), NeurIPS 2021.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Shape = Literal["exponential", "linear", "sine"]


def soft_margin(label: Tensor, *, margin: float, shape: Shape = "exponential", base: float = 10.0) -> Tensor:
    """Margins (b,) of labels (b,) in [0, 1].

    Args:
        base: m of the exponential shape; above 1.
    """
    if shape == "exponential":
        share = (base**label - 1) / (base - 1)
    elif shape == "linear":
        share = label
    elif shape == "sine":
        share = (torch.sin(torch.pi * label - torch.pi / 2) + 1) / 2
    else:
        raise ValueError(f"shape must be one of exponential, linear, sine; got '{shape}'")
    return margin * share  # [eq:soft-margin]
