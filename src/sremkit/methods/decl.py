"""DECL: deep evidential learning. A pair is clean as long as it has the most evidence in its batch.

    L = mean_i (l_i i2t + l_i t2i) + ranking_weight sum over clean pairs h_i
    H = max(floor(hardness_start - hardness_decay updates), hardness_end)

Evidential losses l and hinges h are those of `sremkit.objectives.evidential`. The evidential loss uses all pairs: the
target of a noisy pair is that nothing in the batch matches. In the warm-up every pair counts as clean.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods.base import METHODS, Forward, Method, TrainingContext
from sremkit.methods.common.batch_scores import candidate_mask
from sremkit.models.matcher import evaluating
from sremkit.objectives import Loss
from sremkit.objectives.evidential import dynamic_hinge, evidence, evidential, has_most_evidence
from sremkit.objectives.terms import PairReport


@METHODS.register("decl")
@dataclass(kw_only=True, eq=False)
class DECL(Method):
    """DECL: evidential learning; pairs without the most evidence in their batch get an empty target.

    Args:
        similarity: "tanh" of the logit as published, or "logit" for models whose logits are scaled cosines;
            temperature and margin then refer to logits.
        temperature: divides the similarity before it becomes evidence.
        kl_weight: of the divergence that removes evidence for wrong candidates.
        ranking_weight: of the hinges, relative to the evidential loss.
        margin: of the hinges, in units of the similarity.
        hardness_start: number of hardest candidates that a hinge averages over, at first.
        hardness_decay: how much that number falls with each update.
        hardness_end: the least it falls to.
        mask_repeated_images: captions of the same image in a batch are not each other's negatives.
    """

    selects_pairs: ClassVar[bool] = True

    similarity: Literal["tanh", "logit"] = "tanh"
    temperature: float = 0.1
    kl_weight: float = 0.1
    ranking_weight: float = 0.8
    margin: float = 0.2
    hardness_start: int = 128
    hardness_decay: float = 0.025
    hardness_end: int = 5
    mask_repeated_images: bool = True

    @classmethod
    def example_options(cls) -> dict[str, Any]:
        return {"similarity": "logit", "temperature": 1.0, "margin": 2.0, "ranking_weight": 0.08}

    def __post_init__(self) -> None:
        if self.hardness_end < 1:
            raise ValueError(f"hardness_end must be at least 1, the hardest candidate; got {self.hardness_end}")
        self.updates = torch.tensor(0)  # on the device, so that CUDA graphs increment it
        self.clean = torch.zeros(0, dtype=torch.bool)

    def start(self, context: TrainingContext) -> None:
        self.matcher, self.scan_pairs = context.require_scan()
        self.clean = torch.ones(context.num_pairs, dtype=torch.bool, device=context.device)
        self.updates = self.updates.to(context.device)

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        """Split the pairs: clean are those with the most evidence in a random batch."""
        if warmup:
            return
        with torch.no_grad(), evaluating(self.matcher):
            for batch in self.scan_pairs(epoch):
                similarity = self._similarity(self.matcher(batch))
                found = evidence(similarity, temperature=self.temperature)
                self.clean[batch.pair_id] = has_most_evidence(found, valid=self._valid(batch))

    def graph_key(self) -> Hashable:
        return ()  # the pairs are divided and the updates counted in place

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        similarity = self._similarity(forward(batch))
        valid = self._valid(batch)
        clean = self.clean[batch.pair_id]
        if warmup:
            clean = torch.ones_like(clean)
        found = evidence(similarity, temperature=self.temperature)
        rows = evidential(found, clean, kl_weight=self.kl_weight, valid=valid)
        columns = evidential(found.T, clean, kl_weight=self.kl_weight, valid=valid)
        evidential_loss = (rows + columns).mean().to(similarity.dtype)
        hinges = dynamic_hinge(similarity, margin=self.margin, num_hardest=self.num_hardest(), valid=valid)
        ranking = hinges.masked_fill(~clean, 0.0).sum()
        self.updates.add_(1)
        return Loss(
            total=evidential_loss + self.ranking_weight * ranking,
            parts={"evidential": evidential_loss.detach(), "ranking": ranking.detach()},
            report=None if warmup else PairReport(clean=clean),
        )

    def num_hardest(self) -> Tensor:
        """H of the next update: () int64."""
        # In float64, where decay times updates is a whole number when it should be.
        falling = self.hardness_start - self.hardness_decay * self.updates.double()
        return falling.floor().long().clamp_min(self.hardness_end)

    def state_dict(self) -> dict[str, Tensor]:
        return {"clean": self.clean, "updates": self.updates.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.clean = state["clean"].to(self.clean.device)
        self.updates = state["updates"].to(self.updates, copy=True)  # incremented in place

    def _similarity(self, logits: Tensor) -> Tensor:
        logits = logits.float()
        return logits.tanh() if self.similarity == "tanh" else logits

    def _valid(self, batch: Batch) -> Tensor:
        return candidate_mask(batch, self.mask_repeated_images)
