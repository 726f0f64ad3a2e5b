"""The numbers of a step, read late: they travel from the device while the next step is on its way there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sremkit.models.masking import masked_mean
from sremkit.objectives import Loss, Terms
from sremkit.training.run_folder import RunFolder
from sremkit.training.trouble import DivergedError, has_diverged, what_diverged


class _Noted(NamedTuple):
    step: int
    pair_id: Tensor
    names: list[str]
    values: Tensor  # (names,) on the device


class StepNumbers:
    """Notes the loss and its parts, one step at a time; the loss comes first."""

    def __init__(self, pair_ids: Sequence[str], folder: RunFolder | None) -> None:
        self._pair_ids = pair_ids
        self._folder = folder
        self._noted: _Noted | None = None

    def note(self, step: int, pair_id: Tensor, numbers: dict[str, Tensor]) -> None:
        """Keep the numbers of this step, which must have been read of the step before."""
        values = torch.stack([number.detach().float() for number in numbers.values()])
        self._noted = _Noted(step, pair_id, list(numbers), values)

    def read_into(self, sums: dict[str, float]) -> None:
        """Add what was noted last to these sums, if anything was; stop if the loss is absurd."""
        if self._noted is None:
            return
        noted, self._noted = self._noted, None
        values = noted.values.tolist()
        if has_diverged(values[0]):
            ids = [str(self._pair_ids[row]) for row in noted.pair_id.tolist()]
            raise DivergedError(what_diverged(noted.step, values[0], ids, self._folder))
        for name, value in zip(noted.names, values, strict=True):
            sums[name] = sums.get(name, 0.0) + value


def filter_numbers(terms: Loss) -> dict[str, Tensor]:
    """How many pairs SREM's filter selects, and with which weight they are pulled on average.

    The weights that images give, `weight_i2t`, are those of the texts' ranking, and the reverse. Where they are small,
    rows are flat, and pairs are pulled less than their hard negatives are pushed. Where nobody is selected they are 0.
    """
    if not isinstance(terms, Terms):
        return {}
    return {
        "selected_i2t": terms.clean_i2t.float().mean(),
        "selected_t2i": terms.clean_t2i.float().mean(),
        "weight_i2t": masked_mean(terms.weight_i2t, terms.clean_t2i, dim=0),
        "weight_t2i": masked_mean(terms.weight_t2i, terms.clean_i2t, dim=0),
    }
