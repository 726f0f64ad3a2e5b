"""DECL: deep evidential learning. A pair is believed as long as it gathers the most evidence in its batch.

    L = mean_i (l_i i2t + l_i t2i) + ranking_weight sum over believed pairs h_i
    H = max(floor(hardness_start - hardness_decay updates), hardness_end)

Evidential losses l and hinges h are those of `sremkit.objectives.evidential`. The evidential loss uses all pairs:
one that is not believed is shown that it matches nothing in the batch. In the warm-up every pair is believed.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods import METHODS, Method, Scorer, Surroundings
from sremkit.models.matcher import evaluating
from sremkit.objectives import Loss
from sremkit.objectives.candidates import distinct_images
from sremkit.objectives.evidential import evidence, evidential, growing_hardness, most_evidence


@METHODS.register("decl")
class DECL(Method):
    """DECL: evidential learning; pairs that lose their batch are shown as matching nothing.

    Args:
        similarity: "tanh" of the logit as published, or "logit" for models whose logits are scaled cosines;
            then temperature and margin are measured in logits.
        temperature: divides the similarity before it becomes evidence.
        kl_weight: of the divergence that takes away evidence for wrong candidates.
        ranking_weight: of the hinges beside the evidential loss.
        margin: of the hinges, in units of the similarity.
        hardness_start: over how many hardest candidates a hinge is averaged at first.
        hardness_decay: how many fewer there are after each update.
        hardness_end: how many remain.
        mask_repeated_images: two captions of one image in a batch are nobody's negatives.
    """

    def __init__(
        self,
        *,
        similarity: Literal["tanh", "logit"] = "tanh",
        temperature: float = 0.1,
        kl_weight: float = 0.1,
        ranking_weight: float = 0.8,
        margin: float = 0.2,
        hardness_start: int = 128,
        hardness_decay: float = 0.025,
        hardness_end: int = 5,
        mask_repeated_images: bool = True,
    ) -> None:
        if hardness_end < 1:
            raise ValueError(f"hardness_end must be at least 1, the hardest candidate; got {hardness_end}")
        self.similarity = similarity
        self.temperature = temperature
        self.kl_weight = kl_weight
        self.ranking_weight = ranking_weight
        self.margin = margin
        self.hardness_start = hardness_start
        self.hardness_decay = hardness_decay
        self.hardness_end = hardness_end
        self.mask_repeated_images = mask_repeated_images
        self.updates = torch.tensor(0)  # on the device, where the steps themselves count it
        self.believed = torch.zeros(0, dtype=torch.bool)

    def start(self, surroundings: Surroundings) -> None:
        self.matcher, self.every_pair = surroundings.whole()
        self.believed = torch.ones(surroundings.num_pairs, dtype=torch.bool, device=surroundings.device)
        self.updates = self.updates.to(surroundings.device)

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        """Believe the pairs that win their batch; the warm-up believes everybody."""
        if warmup:
            return
        with torch.no_grad(), evaluating(self.matcher):
            for batch in self.every_pair(epoch):
                similarity = self._similarity(self.matcher(batch))
                gathered = evidence(similarity, temperature=self.temperature)
                self.believed[batch.pair_id] = most_evidence(gathered, valid=self._valid(batch))

    def loss(self, matcher: Scorer, batch: Batch, *, warmup: bool) -> Loss:
        similarity = self._similarity(matcher(batch))
        valid = self._valid(batch)
        believed = self.believed[batch.pair_id]
        if warmup:
            believed = torch.ones_like(believed)
        gathered = evidence(similarity, temperature=self.temperature)
        rows = evidential(gathered, believed, kl_weight=self.kl_weight, valid=valid)
        columns = evidential(gathered.T, believed, kl_weight=self.kl_weight, valid=_transposed(valid))
        evidential_loss = (rows + columns).mean().to(similarity.dtype)
        hinges = growing_hardness(similarity, margin=self.margin, num_hardest=self.num_hardest(), valid=valid)
        ranking = hinges.masked_fill(~believed, 0.0).sum()
        self.updates.add_(1)
        return Loss(
            total=evidential_loss + self.ranking_weight * ranking,
            parts={
                "evidential": evidential_loss.detach(),
                "ranking": ranking.detach(),
                "believed": believed.float().mean(),
            },
        )

    def num_hardest(self) -> Tensor:
        """How many hardest candidates the hinges of the next update look at: () int64."""
        # In float64, where decay times updates lands on whole numbers when it should.
        falling = self.hardness_start - self.hardness_decay * self.updates.double()
        return falling.floor().long().clamp_min(self.hardness_end)

    def state_dict(self) -> dict[str, Tensor]:
        return {"believed": self.believed, "updates": self.updates.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.believed = state["believed"].to(self.believed.device)
        self.updates = state["updates"].to(self.updates, copy=True)  # steps count it in place

    def _similarity(self, logits: Tensor) -> Tensor:
        logits = logits.float()
        return logits.tanh() if self.similarity == "tanh" else logits

    def _valid(self, batch: Batch) -> Tensor | None:
        return distinct_images(batch.image_id) if self.mask_repeated_images else None


def _transposed(valid: Tensor | None) -> Tensor | None:
    return None if valid is None else valid.T
