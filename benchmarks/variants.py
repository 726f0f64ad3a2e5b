"""SREM with one thing changed: the method behind `benchmarks.questions`, not meant for training.

It is composed of the public functions of `sremkit.objectives` and differentiated by autograd, slower than `SREM` and
easy to change. With its defaults it is SREM.

The method is registered when this file is imported, which the registry of methods does not do. A `VariantRecipe`
takes it along into the processes of a grid, because unpickling one imports this file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from sremkit.config.recipes import Recipe
from sremkit.config.settings import SettingsError
from sremkit.data.batch import Batch
from sremkit.methods import METHODS, Forward, Method
from sremkit.objectives import (
    SREM,
    Terms,
    complementary,
    energy,
    energy_bound,
    select_clean,
    sensitivity,
    weighted_ranking,
)
from sremkit.objectives.logits import as_logits, distinct_images, hardest_negative

NAME = "srem-variant"
CleanSet = Literal["own", "both", "either", "i2t"]
ThresholdFrom = Literal["zero", "equal-logits", "median", "mean"]
Weights = Literal["swapped", "own"]
_SWITCHES = ("filtration", "weighting", "complementary", "rectification")


class Queries(NamedTuple):
    """One direction of a batch; rows are queries."""

    logits: Tensor  # (b, b)
    valid: Tensor | None  # (b, b) bool, True where a candidate counts
    energy: Tensor  # (b,) with gradient
    weight: Tensor  # (b,) computed from these rows

    @classmethod
    def of(cls, logits: Tensor, valid: Tensor | None, *, margin: float) -> Queries:
        weight = sensitivity(logits, margin=margin, valid=valid)
        return cls(logits, valid, energy(logits, valid=valid), weight)


@METHODS.register(NAME)
class SREMVariant(Method, options_of=SREM):
    """SREM with one thing changed, for `python -m benchmarks.questions`.

    Args:
        mask_repeated_images: two captions of one image in a batch are not negatives.
        threshold_from: what `threshold` is added to: "zero"; "equal-logits", the energy of the row if all its
            candidates had the logit 0, that is -log b; or the "median" or "mean" energy of the batch.
        relative_margins: `clean_margin` and `noisy_margin` are for the distance from the batch's mean energy.
        energy_ramp_epochs: the energy bound's weight rises by equal steps, from 0 in the first epoch after the
            warm-up to all of it after so many epochs.
        clean_set: a pair is clean in a direction by the rule of its "own" direction, of "both", of "either", or of
            the images ("i2t").
        weights: the ranking uses those of the other direction ("swapped") or its "own".
        options: the hyperparameters of `sremkit.SREM`, less the switches of its ablation.
    """

    selects_pairs: ClassVar[bool] = True

    def __init__(
        self,
        *,
        mask_repeated_images: bool = True,
        threshold_from: ThresholdFrom = "zero",
        relative_margins: bool = False,
        energy_ramp_epochs: int = 0,
        clean_set: CleanSet = "own",
        weights: Weights = "swapped",
        **options: Any,
    ) -> None:
        for switch in _SWITCHES:
            if not options.get(switch, True):
                raise SettingsError(
                    f"'method.{switch}' is a switch of the method 'srem', and '{NAME}' has all parts of it; "
                    "leave it out"
                )
        self.mask_repeated_images = mask_repeated_images
        self.threshold_from = threshold_from
        self.relative_margins = relative_margins
        self.energy_ramp_epochs = energy_ramp_epochs
        self.clean_set = clean_set
        self.weights = weights
        self.settings = SREM(**options)  # checks the options and fills in defaults; its forward is not used
        self.epochs_begun = 0  # after the warm-up

    @property
    def energy_weight(self) -> float:
        """Of this epoch; constant within an epoch, as CUDA graphs require."""
        if self.energy_ramp_epochs == 0:
            return self.settings.energy_weight
        finished = max(self.epochs_begun - 1, 0)
        return self.settings.energy_weight * min(finished / self.energy_ramp_epochs, 1.0)

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        if not warmup:
            self.epochs_begun += 1

    def state_dict(self) -> dict[str, Tensor]:
        return {"epochs_begun": torch.tensor([self.epochs_begun])}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.epochs_begun = int(state["epochs_begun"])

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Terms:
        logits = forward(batch)
        with torch.autocast(device_type=logits.device.type, enabled=False):
            logits = as_logits(logits)
            valid = distinct_images(batch.image_id) if self.mask_repeated_images else None  # symmetric
            i2t = Queries.of(logits, valid, margin=self.settings.margin)
            t2i = Queries.of(logits.T, valid, margin=self.settings.margin)
            return self._terms(i2t, t2i, warmup=warmup)

    def _terms(self, i2t: Queries, t2i: Queries, *, warmup: bool) -> Terms:
        clean_i2t, clean_t2i = self._agree(self._clean(i2t), self._clean(t2i))
        swapped = self.weights == "swapped"
        by_i2t, by_t2i = (t2i, i2t) if swapped else (i2t, t2i)  # the direction whose weights a ranking uses
        parts = {}
        for direction, rows, clean, by in (("i2t", i2t, clean_i2t, by_i2t), ("t2i", t2i, clean_t2i, by_t2i)):
            zero = torch.zeros_like(rows.energy.sum())
            parts[f"ranking_{direction}"] = zero if warmup else self._ranking(rows, by.weight, clean)
            parts[f"energy_{direction}"] = zero if warmup else self._bound(rows.energy, clean)
            used = torch.zeros_like(clean) if warmup else clean
            parts[f"complementary_{direction}"] = self._complementary(rows, used)
        return Terms(
            total=self._total(parts, warmup=warmup),
            parts={name: part.detach() for name, part in parts.items()},
            energy_i2t=i2t.energy.detach(),
            energy_t2i=t2i.energy.detach(),
            clean_i2t=clean_i2t,
            clean_t2i=clean_t2i,
            # In `Terms` the ranking of the images uses `weight_t2i`, and vice versa.
            weight_i2t=by_t2i.weight,
            weight_t2i=by_i2t.weight,
            active_i2t=self._active(i2t, by_i2t.weight, clean_i2t, warmup=warmup),
            active_t2i=self._active(t2i, by_t2i.weight, clean_t2i, warmup=warmup),
        )

    def _total(self, parts: dict[str, Tensor], *, warmup: bool) -> Tensor:
        both = {name: parts[f"{name}_i2t"] + parts[f"{name}_t2i"] for name in ("ranking", "energy", "complementary")}
        if warmup:
            return both["complementary"]
        weighted = 0.5 * both["ranking"] + self.energy_weight * both["energy"]
        return weighted + self.settings.complementary_weight * both["complementary"]

    def _clean(self, rows: Queries) -> Tensor:
        is_best = select_clean(rows.logits, math.inf, valid=rows.valid)
        energies = rows.energy.detach()
        return is_best & (energies < self._threshold_origin(rows) + self.settings.threshold)

    def _threshold_origin(self, rows: Queries) -> Tensor:
        energies = rows.energy.detach()
        if self.threshold_from == "equal-logits":
            return energy(torch.zeros_like(rows.logits), valid=rows.valid)
        if self.threshold_from == "median":
            return energies.median()
        return energies.mean() if self.threshold_from == "mean" else torch.zeros_like(energies)

    def _agree(self, i2t: Tensor, t2i: Tensor) -> tuple[Tensor, Tensor]:
        """The clean sets of both directions, from those of each direction by itself."""
        if self.clean_set == "own":
            return i2t, t2i
        joint = {"both": i2t & t2i, "either": i2t | t2i, "i2t": i2t}[self.clean_set]
        return joint, joint

    def _bound(self, energies: Tensor, clean: Tensor) -> Tensor:
        # The mean keeps its gradient, so that a common shift of all energies has none.
        origin = energies.mean() if self.relative_margins else 0.0
        return energy_bound(
            energies - origin,
            clean,
            clean_margin=self.settings.clean_margin,
            noisy_margin=self.settings.noisy_margin,
        )

    def _ranking(self, rows: Queries, weight: Tensor, clean: Tensor) -> Tensor:
        return weighted_ranking(rows.logits, weight, clean, margin=self.settings.margin, valid=rows.valid)

    def _complementary(self, rows: Queries, used: Tensor) -> Tensor:
        return complementary(
            rows.logits,
            used,
            sharpness=self.settings.sharpness,
            offset=self.settings.offset,
            reading=self.settings.reading,
            valid=rows.valid,
        )

    @torch.no_grad()
    def _active(self, rows: Queries, weight: Tensor, clean: Tensor, *, warmup: bool) -> Tensor:
        """(b,) bool: clean and inside the hinge, so that the ranking pulls the pair together."""
        hard_index, has_negative = hardest_negative(rows.logits, rows.valid)
        hard = rows.logits.gather(1, hard_index[:, None]).squeeze(1)
        hinge = self.settings.margin - weight * rows.logits.diagonal().sigmoid() + hard.sigmoid()
        active = clean & has_negative & (hinge > 0)
        return torch.zeros_like(active) if warmup else active


@dataclass(frozen=True)
class VariantRecipe(Recipe):
    """A recipe whose unpickling registers the method of this file."""

    @classmethod
    def of(cls, recipe: Recipe, **options: Any) -> VariantRecipe:
        """SREM's recipe with these options of the method added."""
        known = {f.name: getattr(recipe, f.name) for f in fields(recipe)}
        return cls(**{**known, "method": {**recipe.method, "name": NAME, **options}})
