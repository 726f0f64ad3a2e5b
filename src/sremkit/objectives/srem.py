"""The SREM objective: energy-guided filtration, swapped gradient weighting, biased complementary learning.

    L = 0.5 (L_w i2t + L_w t2i) + lambda1 (L_u i2t + L_u t2i) + lambda2 (L_c i2t + L_c t2i)      [eq:total]
    L = L_c i2t + L_c t2i                                                                        [eq:warmup]
    L = mean_i (g_i i2t + g_i t2i),  g_i the generalized cross-entropy                           [eq:warmup-power]

`srem_reference` composes the paper's equations in order. `SREM` is the module to train with: the same loss from the
fused implementation in `fast/`. Reference: Dang et al., Noisy Correspondence Learning with Self-Reinforcing Errors
Mitigation, AAAI 2024.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import Tensor, nn

from sremkit.errors import UserNotice
from sremkit.objectives.complementary import Reading, check_reading, complementary
from sremkit.objectives.contrastive import check_power, generalized_cross_entropy
from sremkit.objectives.fast.autograd import fused_srem
from sremkit.objectives.fast.fused import SREMConfig
from sremkit.objectives.filtration import energy, energy_bound, logit_level, select_clean
from sremkit.objectives.logits import as_embeddings, as_logits, check_finite, check_tensor, distinct_images, product
from sremkit.objectives.terms import Terms
from sremkit.objectives.warmup import early_end_message, unscaled_message
from sremkit.objectives.weighting import sensitivity, weighted_hinge, weighted_ranking

LEVEL_STEPS = 100  # batches over which the level of the logits is averaged
SCALE_CHECK = 100  # the batch whose logits are checked for a missing scale


def srem_reference(
    logits: Tensor, settings: SREM | None = None, *, warmup: bool = False, image_ids: Tensor | None = None
) -> Terms:
    """The objective of one batch in the paper's symbols, equation by equation, differentiated by autograd.

    Args:
        settings: the module whose hyperparameters and ablation switches are used; `SREM()` by default.
        warmup, image_ids: as for `SREM.forward`.
    """
    s = SREM() if settings is None else settings
    alpha, tau, beta, b = s.margin, s.threshold, s.rectification * s.sharpness, s.offset
    lambda1, lambda2 = s.energy_weight, s.complementary_weight
    valid = None if image_ids is None else distinct_images(image_ids.to(logits.device))  # (b, b), symmetric
    leveled = as_logits(logits) - s.level.to(logits.device)
    F = [leveled, leveled.T]  # rows are queries: 0, images (i2t); 1, texts (t2i)
    both = (0, 1)

    # Energy-guided filtration.
    E = [energy(F[d], valid=valid) for d in both]  # [eq:energy]
    clean = [select_clean(F[d], tau, valid=valid) | (not s.filtration) for d in both]  # [eq:filter]
    margins = {"clean_margin": s.clean_margin, "noisy_margin": s.noisy_margin}
    L_u = [s.filtration * energy_bound(E[d], clean[d], **margins) for d in both]  # [eq:energy-bound]

    # Swapped gradient weighting: the ranking of direction d uses the weights of the other direction.
    w = [sensitivity(F[d], margin=alpha, valid=valid) for d in both]  # [eq:entropy] [eq:weight]
    w = w if s.weighting else [torch.ones_like(w[d]) for d in both]
    L_w = [  # [eq:ranking]
        weighted_ranking(F[d], w[1 - d], clean[d], margin=alpha, valid=valid) for d in both
    ]

    # Cross-modal biased complementary learning, without the hard negatives that the ranking uses.
    used = [clean[d] & (not warmup) for d in both]
    L_c = [  # [eq:selection] [eq:complementary]
        complementary(F[d], used[d], sharpness=beta, offset=b, reading=s.reading, valid=valid) for d in both
    ]
    L_c = [s.complementary * L_c[d] for d in both]

    total = 0.5 * (L_w[0] + L_w[1]) + lambda1 * (L_u[0] + L_u[1]) + lambda2 * (L_c[0] + L_c[1])  # [eq:total]
    active = [clean[d] & (weighted_hinge(F[d], w[1 - d], margin=alpha, valid=valid) > 0) for d in both]
    if warmup:
        total = L_c[0] + L_c[1]  # [eq:warmup]
        if s.warmup_power is not None:
            g = [generalized_cross_entropy(F[d], power=s.warmup_power, valid=valid) for d in both]
            total = (g[0] + g[1]).mean()  # [eq:warmup-power]
        L_w = L_u = [torch.zeros_like(L_c[d]) for d in both]
        active = [torch.zeros_like(active[d]) for d in both]
    parts = {"ranking": L_w, "energy_bound": L_u, "complementary": L_c}
    return Terms.of(total, **parts, energy=E, clean=clean, weight=w, active=active)


class SREM(nn.Module):
    """The objective as a module without parameters: `SREM()(logits).total.backward()`.

    Logits are (b, b): rows images, columns texts, the given pairs on the diagonal. The model provides the temperature
    or scale, and a bias, which the energy margins need: with the default margins, logits of mismatched pairs should
    lie well below 0. Computed in float32 (float64 stays float64), with autocast disabled inside.

    Args:
        margin: alpha, by which a clean pair should exceed its hardest negative, on sigmoid scores.
        threshold: tau, the energy below which a pair can be clean. With 0 nearly only the argmax rule decides.
        clean_margin: upper bound for the energy of clean pairs.
        noisy_margin: lower bound for the energy of the other pairs.
        sharpness: beta, the preference of complementary labels for hard negatives; 0 selects them uniformly.
        offset: b, the score from which a negative counts as hard in that preference.
        energy_weight: lambda1, of the energy bounds.
        complementary_weight: lambda2, of the complementary losses.
        reading: "normalized", or "printed" for the complementary loss to the letter of the paper, which does not train
            by itself (docs/deviations.md).
        warmup_power: warm up by generalized cross-entropy with this power instead of the complementary loss, which
            learns more slowly from random weights. It leaves the level of the logits free, so the level is measured
            during the warm-up, kept in the buffer `level` and subtracted from then on.
        check_finite: raise on NaN and infinite logits, and warn once of logits without a scale and of a warm-up that
            ended too early. On a GPU the check waits for the device once per call; nothing else in the objective does.
            Skipped inside torch.compile.
        filtration: ablation switch. False: every pair counts as clean, and there is no energy bound.
        weighting: ablation switch. False: every weight is 1.
        complementary: ablation switch. False: no complementary loss, and no warm-up.
        rectification: ablation switch. False: complementary labels are uniform, as with sharpness 0.
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
        warmup_power: float | None = None,
        check_finite: bool = True,
        filtration: bool = True,
        weighting: bool = True,
        complementary: bool = True,
        rectification: bool = True,
    ) -> None:
        super().__init__()
        check_reading(reading)
        self.margin = margin
        self.threshold = threshold
        self.clean_margin = clean_margin
        self.noisy_margin = noisy_margin
        self.sharpness = sharpness
        self.offset = offset
        self.energy_weight = energy_weight
        self.complementary_weight = complementary_weight
        self.reading: Reading = reading
        self.warmup_power = warmup_power
        self.level: Tensor
        self._level_steps: Tensor
        self.register_buffer("level", torch.zeros(()), persistent=warmup_power is not None)
        self.register_buffer("_level_steps", torch.zeros(()), persistent=warmup_power is not None)
        self.check_finite = check_finite
        self._num_batches = 0
        self._last_was_warmup = False
        self.filtration = filtration
        self.weighting = weighting
        self.complementary = complementary
        self.rectification = rectification
        if warmup_power is not None:
            check_power(warmup_power)
        for name in ("margin", "sharpness", "energy_weight", "complementary_weight"):
            if not getattr(self, name) >= 0:  # NaN is refused as well
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")

    def forward(self, logits: Tensor, *, warmup: bool = False, image_ids: Tensor | None = None) -> Terms:
        """The objective of one batch.

        Args:
            warmup: the complementary loss alone. It treats no pair as clean, so no hard negative is excluded; the
                statistics are reported all the same. `sremkit.WarmupMonitor` decides when it is over: when the mean
                weight of clean pairs, `weight_i2t[clean_t2i]`, reaches 2/3. With much less, hard negatives are pushed
                so much more than pairs are pulled that the model collapses.
            image_ids: (b,) integers; pairs with equal numbers share their image and are not each other's negatives.
        """
        logits = as_logits(logits)
        self._check_options(len(logits), warmup, image_ids)
        if self.check_finite and not torch.compiler.is_compiling():
            check_finite("logits", logits)
        with torch.autocast(device_type=logits.device.type, enabled=False):
            valid = None if image_ids is None else distinct_images(image_ids.to(logits.device))
            if warmup and self.warmup_power is not None and self.training:
                self._update_level(logits, valid)
            if self.reading == "printed":
                terms = srem_reference(logits, self, warmup=warmup, image_ids=image_ids)
            else:
                terms = self._fused(logits, valid, warmup)
        if self.check_finite and self.training and not torch.compiler.is_compiling():
            self._check_usage(logits, terms, warmup)
        return terms

    def from_embeddings(
        self,
        image_emb: Tensor,
        text_emb: Tensor,
        scale: Tensor | float,
        bias: Tensor | float = 0.0,
        *,
        warmup: bool = False,
        image_ids: Tensor | None = None,
    ) -> Terms:
        """The objective of logits `scale * image_emb @ text_emb.T + bias`, computed in full float32.

        Args:
            image_emb, text_emb: (b, d), usually of unit length.
            scale, bias: numbers or scalar tensors, which may be learned.
            warmup, image_ids: as for `forward`.
        """
        image_emb, text_emb = as_embeddings(image_emb, text_emb)
        similarity = product(image_emb, text_emb.T)  # (b, b)
        terms: Terms = self(scale * similarity + bias, warmup=warmup, image_ids=image_ids)
        return terms

    def _fused(self, logits: Tensor, valid: Tensor | None, warmup: bool) -> Terms:
        """The same as `srem_reference`, in a few passes over the logits with a gradient in closed form."""
        if self.warmup_power is None:
            return fused_srem(logits, valid, self._config(warmup))
        logits = logits - self.level.to(logits.device)
        if not warmup:
            return fused_srem(logits, valid, self._config(warmup))
        terms = fused_srem(logits.detach(), valid, self._config(warmup))
        i2t, t2i = (generalized_cross_entropy(f, power=self.warmup_power, valid=valid) for f in (logits, logits.T))
        return replace(terms, total=(i2t + t2i).mean())

    def _config(self, warmup: bool) -> SREMConfig:
        return SREMConfig(
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
            complementary=self.complementary,
            warmup=warmup,
        )

    @torch.no_grad()
    def _update_level(self, logits: Tensor, valid: Tensor | None) -> None:
        """Average the level over the last batches, in place and without synchronisation."""
        if self.level.device != logits.device:
            self.level, self._level_steps = self.level.to(logits.device), self._level_steps.to(logits.device)
        self._level_steps.add_(1)
        rate = self._level_steps.clamp_max(LEVEL_STEPS).reciprocal()
        self.level.lerp_(logit_level(logits, valid=valid).to(self.level.dtype), rate)

    def _check_options(self, num_pairs: int, warmup: bool, image_ids: Tensor | None) -> None:
        if warmup and not self.complementary:
            raise ValueError(
                "the warm-up is the complementary loss alone, and complementary=False disables it; "
                "train without a warm-up, or with the complementary loss"
            )
        if image_ids is None:
            return
        check_tensor("image_ids, integers,", image_ids)
        if image_ids.shape != (num_pairs,):
            raise ValueError(
                f"image_ids must hold one number for each of the {num_pairs} pairs; got shape {tuple(image_ids.shape)}"
            )

    def _check_usage(self, logits: Tensor, terms: Terms, warmup: bool) -> None:
        """Warn of logits without a scale, and of a warm-up that ended too early, each once."""
        self._num_batches += 1
        message = unscaled_message(logits) if self._num_batches == SCALE_CHECK else ""
        if self._last_was_warmup and not warmup and self.weighting:
            message = message or early_end_message(terms)
        self._last_was_warmup = warmup
        if message:
            warnings.warn(message, UserNotice, stacklevel=4)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in SREM.__init__.__kwdefaults__ or {})
