"""L2RM: learning to rematch. Mismatched pairs are taken apart and matched anew by partial optimal transport.

Before each epoch a mixture over all losses splits the pairs. Clean pairs are ranked; the images and texts of the noisy
pairs of a batch are re-matched (`objectives/transport.py`):

    L = sum over clean i of their hinges + rematching loss of the noisy part
    cost_ij = [bias - slope s_ij + context mean_j s_ij]_+,   at first bias = slope = 1, context = 0

The cost is learned: its parameters follow the gradient of the costs of clean pairs, which should be small. The warm-up
is symmetric cross-entropy.
Reference: Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods.base import METHODS, Forward, Method, TrainingContext
from sremkit.methods.common.batch_scores import Similarity, candidate_mask, similarity_of
from sremkit.methods.common.mixtures import Mixture, lower_probability, rescaled, split_clean
from sremkit.methods.common.state_dicts import load_optimizer_tensors, optimizer_tensors, prefixed, without_prefix
from sremkit.models.matcher import evaluating
from sremkit.objectives import Loss
from sremkit.objectives.contrastive import symmetric_cross_entropy
from sremkit.objectives.logits import diagonal_mask
from sremkit.objectives.terms import PairReport
from sremkit.objectives.transport import partial_transport, rematching_loss
from sremkit.objectives.triplet import Reduction, triplet


@METHODS.register("l2rm")
@dataclass(kw_only=True, eq=False)
class L2RM(Method):
    """L2RM: re-matches the images and texts of noisy pairs by optimal transport with a learned cost.

    Args:
        similarity: "sigmoid" as published for SGR-like models, or "logit" for scaled cosines.
        temperature: divides the similarity in warm-up and re-matching; 0.05 as published for sigmoids.
        margin: of the hinges, in units of the similarity.
        negatives: a clean pair is ranked against its "hardest" negative as published, or the "mean".
        mixture: over the losses: "beta" as published, or "normal".
        rematch_weight: of the re-matching loss.
        mass: share of the noisy images and texts that is matched.
        epsilon: of the transport, in units of the cost; published: 0.01, on MS-COCO and CC152K 0.07.
        cost_scale: divides the similarity in the cost; the scale of logits that are scaled cosines.
        cost_rate: learning rate of the cost.
        mask_repeated_images: captions of the same image in a batch are not each other's negatives.
    """

    selects_pairs: ClassVar[bool] = True
    supports_cuda_graphs: ClassVar[bool] = False  # the transport iterates until it has converged

    similarity: Similarity = "sigmoid"
    temperature: float = 0.05
    margin: float = 0.2
    negatives: Reduction = "hardest"
    mixture: Mixture = "beta"
    rematch_weight: float = 1.0
    mass: float = 0.1
    epsilon: float = 0.01
    cost_scale: float = 1.0
    cost_rate: float = 2e-6
    mask_repeated_images: bool = True

    def __post_init__(self) -> None:
        for name in ("temperature", "epsilon", "cost_scale"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 < self.mass < 1:
            raise ValueError(f"mass must lie between 0 and 1, got {self.mass}")
        self.clean = torch.zeros(0, dtype=torch.bool)
        self._start_cost(torch.device("cpu"))

    @classmethod
    def example_options(cls) -> dict[str, Any]:
        return {"similarity": "logit", "temperature": 1.0, "margin": 2.0, "cost_scale": 10.0, "mixture": "normal"}

    def start(self, context: TrainingContext) -> None:
        self.matcher, self.scan_pairs = context.require_scan()
        self.clean = torch.ones(context.num_pairs, dtype=torch.bool, device=context.device)
        self._start_cost(context.device)

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        """Split the pairs by their mean hinges in random batches."""
        if warmup:
            return
        losses = torch.zeros(len(self.clean), device=self.clean.device)
        with torch.no_grad(), evaluating(self.matcher):
            for batch in self.scan_pairs(epoch):
                scores = similarity_of(self.matcher(batch), self.similarity)
                hinges = triplet(scores, margin=self.margin, reduction="mean", valid=self._valid(batch))
                losses[batch.pair_id] = hinges.to(losses)
        clean = split_clean(lower_probability(rescaled(losses), self.mixture))
        if bool(clean.any()):  # otherwise the mixture found nothing, and the previous split stays
            self.clean = clean

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        scores = similarity_of(forward(batch), self.similarity)
        distinct = self._valid(batch)
        if warmup:
            logits = scores / self.temperature
            both = symmetric_cross_entropy(logits, valid=distinct) + symmetric_cross_entropy(logits.T, valid=distinct)
            return Loss(total=both.mean(), parts={"symmetric": both.detach().mean()})
        clean = self.clean[batch.pair_id]
        same_part = clean[:, None] == clean[None, :]
        hinges = triplet(scores, margin=self.margin, reduction=self.negatives, valid=distinct & same_part)
        ranking = hinges.masked_fill(~clean, 0.0).sum()
        self._learn_cost(scores.detach()[clean][:, clean])
        rematching, images = self._rematch(scores, distinct, (~clean).nonzero().squeeze(1))
        return Loss(
            total=ranking + self.rematch_weight * rematching,
            parts={"ranking": ranking.detach(), "rematching": rematching.detach()},
            report=PairReport(clean=clean, rematched=torch.where(images < 0, -1, batch.image_id[images])),
        )

    def costs(self, scores: Tensor) -> Tensor:
        """The cost (n, m) of matching each image with each text."""
        bias, slope, context = self.cost.to(scores)
        similarity = scores / self.cost_scale
        return (bias - slope * similarity + context * similarity.mean(dim=1, keepdim=True)).relu()

    def state_dict(self) -> dict[str, Tensor]:
        adam = without_prefix("0", optimizer_tensors(self.cost_optimizer))  # its only parameter
        adam = {name: t.clone() for name, t in adam.items()}
        return {"clean": self.clean, "cost": self.cost.detach().clone(), **prefixed("adam", adam)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.clean = state["clean"].to(self.clean)
        self._start_cost(self.clean.device)
        with torch.no_grad():
            self.cost.copy_(state["cost"])
        load_optimizer_tensors(self.cost_optimizer, prefixed("0", without_prefix("adam", state)))

    def _start_cost(self, device: torch.device) -> None:
        self.cost = torch.tensor([1.0, 1.0, 0.0], device=device, requires_grad=True)  # bias, slope, context
        self.cost_optimizer = torch.optim.Adam([self.cost], lr=self.cost_rate)

    def _learn_cost(self, scores: Tensor) -> None:
        """One step of the cost's parameters, by the scores (n, n) of the clean pairs of a batch."""
        if len(scores) == 0:
            return
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(self.costs(scores).diagonal().sum(), [self.cost])
        self.cost.grad = slope
        self.cost_optimizer.step()
        self.cost.grad = None

    def _rematch(self, scores: Tensor, distinct: Tensor, noisy: Tensor) -> tuple[Tensor, Tensor]:
        """The re-matching loss of these pairs, and the image (b,) that each text was matched with; -1 for none."""
        images = torch.full((len(scores),), -1, device=scores.device)
        if len(noisy) < 2:
            return 0.0 * scores.sum(), images
        part = scores[noisy][:, noisy]
        valid = distinct[noisy][:, noisy] & ~diagonal_mask(part)  # the given pair is known to be wrong
        with torch.no_grad():
            plan = partial_transport(self.costs(part.detach()), mass=self.mass, epsilon=self.epsilon, valid=valid)
        share, best = plan.max(dim=0)
        is_matched = share >= 0.5 / len(noisy)  # more than half of the text
        images[noisy] = torch.where(is_matched, noisy[best], -1)
        return rematching_loss(part / self.temperature, plan, valid=valid), images

    def _valid(self, batch: Batch) -> Tensor:
        return candidate_mask(batch, self.mask_repeated_images)
