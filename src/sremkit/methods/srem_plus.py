"""SREM-plus: SREM's idea with a filter over many epochs. Ours, not the paper's.

Whether a pair is ranked first in one batch depends on the negatives it happens to meet. So the logit of each pair's
in-batch probability is averaged over epochs, and a mixture of two Gaussians over all averages gives the probability
that the pair is clean:

    m_i <- decay m_i + (1 - decay) logit(p_i),  p_i the mean of P_ii over both directions
    w_i = P(upper component | m_i) ^ clean_prob_power
    L = mean_i w_i (CE_i i2t + CE_i t2i) / 2 + complementary_weight (L_c i2t + L_c t2i)

The warm-up is SREM's, complementary learning alone; or generalised cross-entropy, which is faster from random weights.
At its end the mismatch probe (common/mismatch_probe.py) compares the lower component with synthetic mismatches: where
its pairs score better than those, they are hard and not wrong, and every pair counts as clean from then on.

With `rematch_top_k` > 0, texts of pairs that are probably noisy are re-matched before each epoch: the text and the
image of a mismatched pair are usable, only their combination is wrong. Where text and image rank each other high, the
text is trained with that image, with `rematch_weight`. Only such texts take part, so that texts of clean pairs need
not be scored again.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods.base import METHODS, Forward, Method, Pairing, TrainingContext, WarmupStatus
from sremkit.methods.common.batch_accuracy import BatchAccuracy
from sremkit.methods.common.batch_scores import candidate_mask, match_probability
from sremkit.methods.common.mismatch_probe import mismatch_probe, mismatch_rate, mismatch_ratio
from sremkit.methods.common.mixtures import fit_two_gaussians
from sremkit.models import Encoded, Matcher
from sremkit.objectives import Loss, complementary
from sremkit.objectives.contrastive import check_power, generalized_cross_entropy, row_cross_entropy
from sremkit.objectives.terms import PairReport

MIN_PAIRS = 100  # for a mixture of two components
TEXT_CHUNK = 4096  # texts that are scored with all images at a time


@METHODS.register("srem-plus")
@dataclass(kw_only=True, eq=False)
class SREMPlusMethod(Method):
    """SREM with a memory: pairs are weighted by their scores over many epochs, not by one batch.

    Args:
        decay: of the moving average over a pair's logits.
        temperature: divides the logits in every term.
        complementary_weight: of the complementary losses after the warm-up.
        sharpness: how strongly complementary labels prefer hard negatives.
        min_separation: of the two components in standard deviations; below it every pair counts as clean.
        min_mismatch_ratio: of the mismatch probe at the end of the warm-up; below it, and below `min_mismatch_rate`,
            the data have no wrong pairs, and every pair counts as clean from then on. 0 switches the probe off.
        min_mismatch_rate: share of all pairs that the probe takes for mismatched; see `min_mismatch_ratio`.
        clean_prob_power: the probabilities are raised to it; above 1, doubtful pairs get less weight.
        rematch_top_k: a text whose pair is probably noisy is trained with its best image, if it is among the top k of
            such texts for that image; 0 switches re-matching off. With fewer than k such texts, each takes its image.
        rematch_every: each text is re-matched every so many epochs, and keeps its image until then.
        rematch_weight: of a re-matched pair.
        warmup_power: warm up by generalised cross-entropy with this power instead of complementary learning.
        mask_repeated_images: captions of the same image in a batch are not each other's negatives.
    """

    selects_pairs: ClassVar[bool] = True
    monitors_warmup: ClassVar[bool] = True

    decay: float = 0.7
    temperature: float = 1.0
    complementary_weight: float = 0.3
    sharpness: float = 0.0
    min_separation: float = 1.5
    min_mismatch_ratio: float = 0.2
    min_mismatch_rate: float = 0.02
    clean_prob_power: float = 1.0
    rematch_top_k: int = 0
    rematch_every: int = 1
    rematch_weight: float = 1.0
    warmup_power: float | None = None
    mask_repeated_images: bool = True

    def __post_init__(self) -> None:
        if self.warmup_power is not None:
            check_power(self.warmup_power)
        if self.rematch_every < 1:
            raise ValueError(f"rematch_every must be at least 1, every epoch; got {self.rematch_every}")
        if self.min_mismatch_ratio < 0:
            raise ValueError(f"min_mismatch_ratio must be at least 0, which is off; got {self.min_mismatch_ratio}")
        if not 0 <= self.min_mismatch_rate <= 1:
            raise ValueError(f"min_mismatch_rate is a share between 0 and 1; got {self.min_mismatch_rate}")
        if self.clean_prob_power <= 0:
            raise ValueError(
                f"clean_prob_power must be above 0, 1 for the mixture's own probability; got {self.clean_prob_power}"
            )
        self.memory = torch.zeros(0)  # m_i, NaN before the first batch with pair i
        self.probe_memory = torch.zeros(0)  # the same average over synthetic mismatches, during the warm-up
        self.mismatch_ratio = self.mismatch_rate = math.nan  # after the last epoch of the warm-up
        self.all_clean = False  # the mismatch probe found no wrong pairs
        self.clean_prob: Tensor = torch.zeros(0)
        self.rematched = torch.zeros(0, dtype=torch.bool)
        self.image_of_text = torch.zeros(0, dtype=torch.int64)  # with re-matched images
        self.pairing: Pairing | None = None
        self.batch_accuracy = BatchAccuracy()

    def start(self, context: TrainingContext) -> None:
        num_pairs, device = context.num_pairs, context.device
        self.memory = torch.full((num_pairs,), float("nan"), device=device)
        self.probe_memory = self.memory.clone()
        self.clean_prob = torch.ones(num_pairs, device=device)
        self.rematched = torch.zeros(num_pairs, dtype=torch.bool, device=device)
        self.pairing = context.pairing
        if self.pairing is not None:
            self.image_of_text = self.pairing.image_of_text

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        """Re-match the texts of pairs that are probably noisy."""
        if warmup:
            return
        self.batch_accuracy.reset()
        self.probe_memory.fill_(float("nan"))
        if self.rematch_top_k == 0:
            return
        given, encode, assign_images = self._require_pairing()
        noisy = (self.clean_prob < 0.5).cpu()
        self.image_of_text = torch.where(noisy, self.image_of_text, given)
        is_due = torch.arange(len(noisy)) % self.rematch_every == epoch % self.rematch_every
        texts_due = (noisy & is_due).nonzero().squeeze(1)
        if len(texts_due):
            matcher, (images, texts) = encode(texts_due)
            top_k = math.ceil(self.rematch_top_k / self.rematch_every)  # of the texts that are due
            best = best_images(matcher, images, texts, top_k=top_k)
            self.image_of_text[texts_due] = torch.where(best.is_mutual, best.image, given[texts_due])
        self.rematched.copy_(self.image_of_text != given)
        assign_images(self.image_of_text)

    def graph_key(self) -> Hashable:
        return ()  # clean probabilities and re-matched texts are written in place

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        logits = forward(batch).float() / self.temperature
        valid = candidate_mask(batch, self.mask_repeated_images)
        rematched = self.rematched[batch.pair_id]
        self._average(self.memory, match_probability(logits, valid), batch.pair_id, where=~rematched)
        directions = (logits, logits.T)
        no_pair = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
        lc_i2t, lc_t2i = (
            complementary(f, no_pair, sharpness=self.sharpness, offset=0.5, valid=valid) for f in directions
        )
        parts = {"complementary_i2t": lc_i2t.detach(), "complementary_t2i": lc_t2i.detach()}
        if warmup:
            self._monitor_warmup(logits, valid, batch)
            total = lc_i2t + lc_t2i
            if self.warmup_power is not None:
                i2t, t2i = (generalized_cross_entropy(f, power=self.warmup_power, valid=valid) for f in directions)
                total = (i2t + t2i).mean()
            return Loss(total, parts)
        clean_prob = self.clean_prob[batch.pair_id]
        weight = clean_prob.masked_fill(rematched, self.rematch_weight)
        i2t, t2i = (row_cross_entropy(f, valid=valid) for f in directions)
        cross_entropy = (weight * ((i2t + t2i) / 2)).mean()
        return Loss(
            cross_entropy + self.complementary_weight * (lc_i2t + lc_t2i),
            {"cross_entropy": cross_entropy.detach(), **parts},
            report=PairReport(
                clean=(clean_prob >= 0.5) | rematched,
                weight=weight,
                rematched=torch.where(rematched, batch.image_id, -1) if self.rematch_top_k > 0 else None,
            ),
        )

    def finish_epoch(self) -> None:
        """Fit the mixture to the averaged logits and update the clean probabilities."""
        self.batch_accuracy.finish_epoch()
        known = ~self.memory.isnan()
        memory = self.memory[known]
        if len(memory) < MIN_PAIRS:
            return
        mixture = fit_two_gaussians(memory.cpu())
        probes = self.probe_memory[~self.probe_memory.isnan()].cpu()
        if len(probes):  # in the warm-up only
            self.mismatch_ratio = mismatch_ratio(memory.cpu(), probes, float(mixture.weight[0]))
            self.mismatch_rate = mismatch_rate(memory.cpu(), probes)
            is_low = self.mismatch_rate < self.min_mismatch_rate
            self.all_clean = is_low and self.mismatch_ratio < self.min_mismatch_ratio
        clean_prob = torch.ones_like(self.clean_prob)
        if not self.all_clean and mixture.separation >= self.min_separation:
            clean_prob[known] = mixture.upper_probability(memory.cpu()).to(clean_prob) ** self.clean_prob_power
        self.clean_prob.copy_(clean_prob)

    def warmup_status(self) -> WarmupStatus:
        finding = ""
        if self.all_clean:
            finding = (
                f"no wrong pairs found: the mismatch ratio is {self.mismatch_ratio:.2f}, below "
                f"method.min_mismatch_ratio = {self.min_mismatch_ratio:g}, and {100 * self.mismatch_rate:.1f} % of the "
                "pairs look mismatched at random; every pair counts as clean from now on. Pairs that are nearly right "
                "cannot be seen in this way"
            )
        return WarmupStatus(
            is_ready=self.batch_accuracy.is_sufficient(), message=self.batch_accuracy.message(), finding=finding
        )

    def state_dict(self) -> dict[str, Tensor]:
        state = {"memory": self.memory, "clean_prob": self.clean_prob, **self.batch_accuracy.state_dict()}
        state["all_clean"] = torch.tensor(self.all_clean)
        if not self.probe_memory.isnan().all():
            state["probe_memory"] = self.probe_memory
        if self.rematch_top_k > 0:
            state |= {"rematched": self.rematched, "assigned_images": self.image_of_text}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        device = self.memory.device
        self.memory = state["memory"].to(device)
        self.clean_prob = state["clean_prob"].to(device)
        no_probes = torch.full_like(self.memory, float("nan"))
        self.probe_memory = state.get("probe_memory", no_probes).to(device)
        self.all_clean = bool(state.get("all_clean", False))
        self.batch_accuracy.load_state_dict(state)
        if self.rematch_top_k > 0:
            self.rematched = state["rematched"].to(device)
            self.image_of_text = state["assigned_images"].cpu()
            self._require_pairing().assign_images(self.image_of_text)

    def _monitor_warmup(self, logits: Tensor, valid: Tensor, batch: Batch) -> None:
        if self.min_mismatch_ratio > 0:
            probability, is_valid = mismatch_probe(logits.detach(), valid)
            self._average(self.probe_memory, probability, batch.pair_id, where=is_valid)
        self.batch_accuracy.update(logits, batch.image_id if self.mask_repeated_images else None)

    def _require_pairing(self) -> Pairing:
        if self.pairing is None:
            raise ValueError("re-matching assigns other images to texts; start the method with the pairing")
        return self.pairing

    def _average(self, memory: Tensor, probability: Tensor, pair_id: Tensor, *, where: Tensor) -> None:
        """Update the moving average of these pairs' logits in place, where `where` is True."""
        logit = torch.logit(probability, eps=1e-6)
        before = memory[pair_id]
        updated = torch.where(before.isnan(), logit, self.decay * before + (1 - self.decay) * logit)
        memory[pair_id] = torch.where(where, updated, before)


class BestImages(NamedTuple):
    """The image with the highest score for each text."""

    image: Tensor  # (m,) int64
    is_mutual: Tensor  # (m,) bool: the text is among the top k texts of that image


@torch.no_grad()
def best_images(
    matcher: Matcher, images: Encoded, texts: Encoded, *, top_k: int, text_chunk: int = TEXT_CHUNK
) -> BestImages:
    """Score all images with all texts, `text_chunk` texts at a time; the result is on the CPU."""
    device = next(matcher.parameters()).device
    best_of_image = torch.full((len(images), top_k), -torch.inf, device=device)
    scores, best = [], []
    for start in range(0, len(texts), text_chunk):
        chunk = texts[start : start + text_chunk]
        block = matcher.score_all(images, chunk, on_device=True).float()  # (n, chunk)
        score, image = block.max(dim=0)
        scores.append(score)
        best.append(image)
        best_here = block.topk(min(top_k, block.shape[1]), dim=1).values
        best_of_image = torch.cat([best_of_image, best_here], dim=1).topk(top_k, dim=1).values
    image = torch.cat(best)
    return BestImages(image.cpu(), (torch.cat(scores) >= best_of_image[image, -1]).cpu())
