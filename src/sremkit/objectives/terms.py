"""What the objective returns for a batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Loss:
    """What every objective returns: the loss and its parts by name."""

    total: Tensor  # scalar: call .backward() on it
    parts: dict[str, Tensor]  # detached


@dataclass(frozen=True, eq=False)
class Terms(Loss):
    """The loss, its parts and what it made of each pair. Everything but `total` is detached.

    `parts` holds each term unweighted: `ranking_i2t`, `ranking_t2i`, `energy_i2t`, `energy_t2i`,
    `complementary_i2t` and `complementary_t2i`; a term that takes no part, in the warm-up or by an ablation
    switch, is 0. The per-pair tensors are (b,), once with images as queries (i2t) and once with texts
    (t2i).

    `weight_i2t` is the weight that the *image* rows give; by the swap the ranking of the texts uses it, and
    `weight_t2i` is used by the ranking of the images.
    """

    energy_i2t: Tensor
    energy_t2i: Tensor
    clean_i2t: Tensor  # bool
    clean_t2i: Tensor
    weight_i2t: Tensor  # in [0, 1]
    weight_t2i: Tensor
    active_i2t: Tensor  # bool: clean and inside the hinge, so the ranking loss pulls this pair together
    active_t2i: Tensor
