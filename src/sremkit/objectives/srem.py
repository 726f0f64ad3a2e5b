"""The SREM objective: filter by energy, rank what is clean, learn from what the rest is not.

    L = 0.5 (L_w i2t + L_w t2i) + lambda1 (L_u i2t + L_u t2i) + lambda2 (L_c i2t + L_c t2i)      [eq:total]
    L = L_c i2t + L_c t2i                                                                        [eq:warmup]

Reference: Dang et al., Noisy Correspondence Learning with Self-Reinforcing Errors Mitigation, AAAI 2024.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sremkit.objectives.candidates import as_logits, check_logits, distinct_images
from sremkit.objectives.complementary import Reading, check_reading, complementary
from sremkit.objectives.differentiable import weighted_sum
from sremkit.objectives.fused import Outcome, Plan
from sremkit.objectives.precision import product
from sremkit.objectives.terms import Terms


class SREM(nn.Module):
    """The objective as a module without parameters: `SREM()(logits).total.backward()`.

    Logits are (b, b): rows images, columns texts, the given pairs on the diagonal. A temperature or scale,
    learned or not, is the model's business; so is a bias, which the energy margins ask for: with the defaults
    logits should lie well below 0 where nothing fits. Computed in float32 (float64 stays float64), with autocast
    switched off inside.

    Args:
        margin: lead of a clean pair over its hardest negative that the ranking asks for, on sigmoid scores.
        threshold: energy below which a pair can be clean. With 0 nearly only the argmax rule decides.
        clean_margin: energy that clean pairs are pushed below.
        noisy_margin: energy that the other pairs are pushed above.
        sharpness: how strongly complementary labels prefer hard negatives; 0 draws them uniformly.
        offset: score from which a negative counts as hard in that preference.
        energy_weight: lambda1, of the energy bounds.
        complementary_weight: lambda2, of the complementary losses.
        reading: "normalized", or "printed" for the complementary loss to the letter of the paper, which
            does not train by itself (docs/deviations.md).
        check_finite: refuse NaN and infinite logits. Looking costs one wait for the device per call on a
            GPU; nothing else in the objective waits. Skipped inside torch.compile.
        filtration: without it every pair counts as clean and there is no energy bound.
        weighting: without it every weight is 1.
        complementary: without it there is no complementary loss, and no warm-up.
        rectification: without it complementary labels are drawn uniformly, as with sharpness 0.
    """

    def __init__(
        self,
        *,
        margin: float = 0.2,
        threshold: float = 0.0,
        clean_margin: float = -4.0,
        noisy_margin: float = 0.0,
        sharpness: float = 1.0,
        offset: float = 0.5,
        energy_weight: float = 0.01,
        complementary_weight: float = 1.0,
        reading: Reading = "normalized",
        check_finite: bool = True,
        filtration: bool = True,
        weighting: bool = True,
        complementary: bool = True,
        rectification: bool = True,
    ) -> None:
        super().__init__()
        check_reading(reading)
        _check_positive(margin=margin, sharpness=sharpness, energy_weight=energy_weight)
        _check_positive(complementary_weight=complementary_weight)
        self.margin = margin
        self.threshold = threshold
        self.clean_margin = clean_margin
        self.noisy_margin = noisy_margin
        self.sharpness = sharpness
        self.offset = offset
        self.energy_weight = energy_weight
        self.complementary_weight = complementary_weight
        self.reading: Reading = reading
        self.check_finite = check_finite
        self.filtration = filtration
        self.weighting = weighting
        self.complementary = complementary
        self.rectification = rectification

    def forward(self, logits: Tensor, *, warmup: bool = False, image_ids: Tensor | None = None) -> Terms:
        """The objective of one batch.

        Args:
            warmup: the complementary loss alone. No pair is counted clean by it, so no hard negative is
                left out; the statistics are reported all the same. Go on with it until the weights of clean
                pairs, `weight_i2t[clean_t2i]`, are 2/3 on average: with much less, hard negatives are pushed
                so much more than pairs are pulled that the model forgets what it has learnt.
            image_ids: (b,) integers; pairs with equal numbers share their image and are not each other's
                negatives.
        """
        self._check(logits, warmup, image_ids)
        with torch.autocast(device_type=logits.device.type, enabled=False):
            logits = as_logits(logits)
            valid = None if image_ids is None else distinct_images(image_ids.to(logits.device))
            return self._terms(logits, valid, warmup)

    def from_embeddings(
        self,
        image_emb: Tensor,
        text_emb: Tensor,
        scale: Tensor | float,
        bias: Tensor | float = 0.0,
        **options: Any,
    ) -> Terms:
        """The objective of logits `scale * image_emb @ text_emb.T + bias`, formed in full float32.

        Args:
            image_emb, text_emb: (b, d), usually of unit length.
            scale, bias: numbers or scalar tensors, which may be learned.
            options: `warmup` and `image_ids`, as for a call.
        """
        image_emb, text_emb = as_embeddings(image_emb, text_emb)
        similarity = product(image_emb, text_emb.T)  # (b, b)
        return self(scale * similarity + bias, **options)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in SREM.__init__.__kwdefaults__ or {})

    def _terms(self, logits: Tensor, valid: Tensor | None, warmup: bool) -> Terms:
        plan = self._plan(warmup)
        found, total = weighted_sum(logits, valid, plan)  # [eq:total] [eq:warmup]
        terms = self._as_terms(found, total, warmup)
        if self.complementary and self.reading == "printed":
            printed_i2t = self._printed(logits, found.clean_i2t, valid, plan)
            printed_t2i = self._printed(logits.T, found.clean_t2i, None if valid is None else valid.T, plan)
            parts = {"complementary_i2t": printed_i2t.detach(), "complementary_t2i": printed_t2i.detach()}
            total = total + plan.complementary_weight * (printed_i2t + printed_t2i)
            return replace(terms, total=total, parts={**terms.parts, **parts})
        return terms

    def _as_terms(self, found: Outcome, total: Tensor, warmup: bool) -> Terms:
        """What was found, without the terms that take no part."""
        nothing = torch.zeros_like(found.ranking_i2t)
        bounds = self.filtration and not warmup
        parts = {
            "ranking_i2t": nothing if warmup else found.ranking_i2t,
            "ranking_t2i": nothing if warmup else found.ranking_t2i,
            "energy_i2t": found.energy_bound_i2t if bounds else nothing,
            "energy_t2i": found.energy_bound_t2i if bounds else nothing,
            "complementary_i2t": found.complementary_i2t,
            "complementary_t2i": found.complementary_t2i,
        }
        return Terms(
            total=total,
            parts=parts,
            energy_i2t=found.energy_i2t,
            energy_t2i=found.energy_t2i,
            clean_i2t=found.clean_i2t,
            clean_t2i=found.clean_t2i,
            weight_i2t=found.weight_i2t,
            weight_t2i=found.weight_t2i,
            active_i2t=torch.zeros_like(found.active_i2t) if warmup else found.active_i2t,
            active_t2i=torch.zeros_like(found.active_t2i) if warmup else found.active_t2i,
        )

    def _plan(self, warmup: bool) -> Plan:
        return Plan(
            margin=self.margin,
            threshold=self.threshold,
            clean_margin=self.clean_margin,
            noisy_margin=self.noisy_margin,
            sharpness=self.sharpness if self.rectification else 0.0,
            offset=self.offset,
            ranking_weight=0.0 if warmup else 0.5,
            energy_weight=self.energy_weight if self.filtration and not warmup else 0.0,
            complementary_weight=1.0 if warmup else self.complementary_weight,
            filtration=self.filtration,
            weighting=self.weighting,
            complementary=self.complementary and self.reading == "normalized",
            exclude_used=not warmup,
        )

    def _printed(self, logits: Tensor, clean: Tensor, valid: Tensor | None, plan: Plan) -> Tensor:
        used = clean if plan.exclude_used else torch.zeros_like(clean)
        return complementary(
            logits, used, sharpness=plan.sharpness, offset=plan.offset, reading="printed", valid=valid
        )

    def _check(self, logits: Tensor, warmup: bool, image_ids: Tensor | None) -> None:
        _check_tensor("logits", logits)
        check_logits(logits)
        self._check_options(len(logits), warmup, image_ids)
        if self.check_finite and not torch.compiler.is_compiling() and not all_finite(logits):
            raise ValueError(
                "logits hold NaN or infinite values; look for a division by a zero norm, an overflow in half "
                "precision or too high a learning rate (check_finite=False switches this check off)"
            )

    def _check_options(self, size: int, warmup: bool, image_ids: Tensor | None) -> None:
        if warmup and not self.complementary:
            raise ValueError(
                "the warm-up is the complementary loss alone, and complementary=False switched it off; "
                "train without a warm-up, or with the complementary loss"
            )
        if image_ids is None:
            return
        _check_tensor("image_ids, integers,", image_ids)
        if image_ids.shape != (size,):
            raise ValueError(
                f"image_ids must hold one number for each of the {size} pairs; "
                f"got shape {tuple(image_ids.shape)}"
            )


def as_embeddings(image_emb: Tensor, text_emb: Tensor) -> tuple[Tensor, Tensor]:
    """The checked embeddings in one format, float32 at least."""
    _check_tensor("image_emb", image_emb)
    _check_tensor("text_emb", text_emb)
    if image_emb.ndim != 2 or image_emb.shape != text_emb.shape:
        raise ValueError(
            "image_emb and text_emb must both be (b, d), row i of each belonging to pair i; "
            f"got {tuple(image_emb.shape)} and {tuple(text_emb.shape)}"
        )
    wide = torch.promote_types(torch.promote_types(image_emb.dtype, text_emb.dtype), torch.float32)
    return image_emb.to(wide), text_emb.to(wide)


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        given = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
        raise TypeError(f"{name} must be a torch.Tensor, got {given}; make one with torch.as_tensor")


def _check_positive(**settings: float) -> None:
    for name, value in settings.items():
        if not value >= 0:
            raise ValueError(f"{name} must be 0 or more, got {value}")


def all_finite(logits: Tensor) -> bool:
    """One pass without a temporary matrix: a NaN or infinite entry shows in the least or the greatest."""
    least, greatest = logits.detach().aminmax()
    return bool((least.isfinite() & greatest.isfinite()).item())
