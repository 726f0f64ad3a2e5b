"""The result of a loss for one batch: a scalar to differentiate, named parts and an optional report on each pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

#: A statistic of each pair: (b,), or where a method decides per direction one (b,) for each, (i2t, t2i).
PerPair = Tensor | tuple[Tensor, Tensor]


def both_directions(value: PerPair) -> tuple[Tensor, Tensor]:
    """A statistic as (i2t, t2i): the same tensor twice where a method decides once per pair."""
    return value if isinstance(value, tuple) else (value, value)


class PairReport(NamedTuple):
    """What a loss decided about each pair of its batch, detached; None where a method does not compute it."""

    clean: PerPair | None = None  # bool: selected as a correct pair
    weight: PerPair | None = None  # in [0, 1]
    energy: PerPair | None = None  # low: a confident match
    active: PerPair | None = None  # bool: the loss has a gradient that pulls the pair together
    swapped: bool = False  # the weight of one direction is applied in the loss of the other, as in SREM
    rematched: Tensor | None = None  # (b,) int64: the image that the text was re-matched with, -1 where it was not

    def applied_weight(self) -> PerPair | None:
        """The weight by the direction whose loss uses it."""
        if self.swapped and isinstance(self.weight, tuple):
            i2t, t2i = self.weight
            return t2i, i2t
        return self.weight


@dataclass(frozen=True, eq=False)
class Loss:
    """The loss of a batch, as every method returns it."""

    total: Tensor  # scalar: call .backward() on it
    parts: dict[str, Tensor]  # detached
    report: PairReport | None = field(default=None, kw_only=True)  # None: no decision about pairs


@dataclass(frozen=True, eq=False)
class Terms(Loss):
    """The SREM loss, its parts and per-pair statistics. Everything but `total` is detached.

    `parts` holds each term unweighted: `ranking_i2t`, `ranking_t2i`, `energy_i2t`, `energy_t2i`,
    `complementary_i2t` and `complementary_t2i`. A term that is not used, in the warm-up or by an ablation switch, is 0.
    The per-pair tensors are (b,), with images as queries (i2t) and with texts as queries (t2i).

    `weight_i2t` is computed from the image rows. Weights are swapped: the ranking loss of the texts uses `weight_i2t`,
    that of the images `weight_t2i`. `report` holds the same statistics.
    """

    energy_i2t: Tensor
    energy_t2i: Tensor
    clean_i2t: Tensor  # bool
    clean_t2i: Tensor
    weight_i2t: Tensor  # in [0, 1]
    weight_t2i: Tensor
    active_i2t: Tensor  # bool: clean and inside the hinge, so the ranking loss pulls this pair together
    active_t2i: Tensor

    @classmethod
    def of(
        cls,
        total: Tensor,
        *,
        ranking: Sequence[Tensor],
        energy_bound: Sequence[Tensor],
        complementary: Sequence[Tensor],
        energy: Sequence[Tensor],
        clean: Sequence[Tensor],
        weight: Sequence[Tensor],
        active: Sequence[Tensor],
    ) -> Terms:
        """From two values of each, in the order (i2t, t2i)."""
        parts = {"ranking": ranking, "energy": energy_bound, "complementary": complementary}
        statistics = {"energy": energy, "clean": clean, "weight": weight, "active": active}
        return cls(total, _by_direction(parts), report=None, **_by_direction(statistics))

    def __post_init__(self) -> None:
        report = PairReport(
            clean=(self.clean_i2t, self.clean_t2i),
            weight=(self.weight_i2t, self.weight_t2i),
            energy=(self.energy_i2t, self.energy_t2i),
            active=(self.active_i2t, self.active_t2i),
            swapped=True,
        )
        object.__setattr__(self, "report", report)  # the dataclass is frozen


def _by_direction(values: dict[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    return {
        f"{name}_{direction}": value.detach() if value.requires_grad else value
        for name, both in values.items()
        for direction, value in zip(("i2t", "t2i"), both, strict=True)
    }
