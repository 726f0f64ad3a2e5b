"""MSCN: meta similarity correction. A meta-network trained on trusted pairs scores and selects the pairs.

Two networks, each a backbone with a meta-network on top. The warm-up trains all of it with the mean hinge. Then, in
every epoch, each network selects the pairs that are more similar to trusted pairs than to random ones, and the *other*
network is trained on them. An update has two parts:

    meta-network:  Adam on the cross-entropy of trusted and of random pairs, through a virtual step of the backbone
    backbone:      L = sum over selected pairs of their hinges with soft margins,  margin / (1 + (p / (1 - p))^-2)

where p is the pair's similarity. Pairs that are not selected are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods.base import METHODS, Forward, Method, TrainingContext
from sremkit.methods.common.batch_scores import Similarity, candidate_mask, similarity_of
from sremkit.methods.common.meta_step import ForwardLoss, meta_gradients
from sremkit.methods.common.mixtures import seeded_match_probability
from sremkit.methods.common.state_dicts import load_optimizer_tensors, optimizer_tensors, prefixed, without_prefix
from sremkit.models import Matcher, build_matcher
from sremkit.models.matcher import evaluating
from sremkit.models.wrappers.meta_scored import MetaScored
from sremkit.objectives import Loss
from sremkit.objectives.logits import as_logits
from sremkit.objectives.terms import PairReport
from sremkit.objectives.triplet import Reduction, triplet


@METHODS.register("mscn")
@dataclass(kw_only=True, eq=False)
class MSCN(Method):
    """MSCN: a meta-network trained on trusted pairs scores, selects and softens; two networks.

    Args:
        similarity: hinges on "sigmoid" scores as published, or on the "logit" for scaled cosines.
        margin: of the hinges, in units of the similarity.
        negatives: a selected pair is ranked against its "hardest" negative as published, or against the "mean".
        virtual_rate: learning rate of the virtual step; the training's own, as published.
        meta_rate: learning rate of the meta-network after the warm-up.
        meta_batch: pairs in a meta-step, one half trusted, the other random.
        meta_interval: updates from one meta-step to the next; 1 as published, a larger one is much faster.
        mask_repeated_images: captions of the same image in a batch are not each other's negatives.
    """

    networks: ClassVar[int] = 2
    needs_trusted: ClassVar[bool] = True
    selects_pairs: ClassVar[bool] = True
    supports_cuda_graphs: ClassVar[bool] = False  # a meta-step every few updates

    similarity: Similarity = "sigmoid"
    margin: float = 0.2
    negatives: Reduction = "hardest"
    virtual_rate: float = 2e-4
    meta_rate: float = 1.7e-5
    meta_batch: int = 64
    meta_interval: int = 1
    mask_repeated_images: bool = True

    def __post_init__(self) -> None:
        if self.meta_batch < 2:
            raise ValueError(f"meta_batch must be at least 2, a correct pair and a wrong one; got {self.meta_batch}")
        if self.meta_interval < 1:
            raise ValueError(f"meta_interval must be at least 1, got {self.meta_interval}")
        self.clean = torch.zeros(2, 0, dtype=torch.bool)  # row k: selected by network k
        self.updates = 0  # since the warm-up
        self.meta_loss = torch.zeros(())  # of the last meta-step

    @classmethod
    def model(cls, backbone: str, **options: Any) -> Matcher:
        member = {"name": backbone, "options": options}
        return build_matcher("two-networks", member={"name": "meta-scored", "options": {"member": member}})

    def start(self, context: TrainingContext) -> None:
        self.matcher, self.scan_pairs = context.require_scan()
        if context.trusted is None:
            raise ValueError("MSCN needs trusted pairs; start it with some")
        self.trusted = context.trusted
        self.device = context.device
        self.clean = torch.ones(2, context.num_pairs, dtype=torch.bool, device=self.device)
        self.meta_loss = torch.zeros((), device=self.device)
        self.meta_optimizer = torch.optim.Adam(self._meta_parameters(), lr=self.meta_rate)

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        """Select, by each network, the pairs whose similarities are like those of trusted pairs."""
        if warmup:
            return
        given = torch.zeros(self.clean.shape, device=self.device)
        wrong: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad(), evaluating(self.matcher):
            for batch in self.scan_pairs(epoch):
                similarity = self._similarities(batch)
                given[:, batch.pair_id] = similarity.diagonal(dim1=1, dim2=2)
                wrong.append(random_pairs(similarity, batch.image_id))
            right = [
                self._similarities(batch.to(self.device)).diagonal(dim1=1, dim2=2)
                for batch in self.trusted.every_pair(epoch)
            ]
        # Masked here and not per batch, where the host would have to wait for the count.
        is_other = torch.cat([other for _, other in wrong]).cpu()
        for k in range(2):
            match_prob = seeded_match_probability(
                given[k].cpu(),
                matched=torch.cat(right, dim=1)[k].cpu(),
                mismatched=torch.cat([scores[k] for scores, _ in wrong]).cpu()[is_other],
            )
            self.clean[k] = (match_prob > 0.5).to(self.device)

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        for parameter in self._meta_parameters():
            parameter.requires_grad_(warmup)  # after the warm-up the trainer's optimizer does not update them
        if warmup:
            valid = candidate_mask(batch, self.mask_repeated_images)
            ranking = [
                triplet(similarity_of(f, self.similarity), margin=self.margin, reduction="mean", valid=valid).sum()
                for f in forward(batch)
            ]
            return Loss(total=ranking[0] + ranking[1], parts={"ranking": (ranking[0] + ranking[1]).detach()})
        if self.updates % self.meta_interval == 0:
            self.meta_loss = self._meta_step(batch)
        self.updates += 1
        clean = self.clean[:, batch.pair_id]  # (2, b)
        logits = forward(batch)  # (2, b, b)
        total = self._ranking(logits[0], batch, clean[1]) + self._ranking(logits[1], batch, clean[0])
        parts = {"ranking": total.detach(), "meta": self.meta_loss}
        return Loss(total=total, parts=parts, report=PairReport(clean=clean[0] & clean[1]))

    def state_dict(self) -> dict[str, Tensor]:
        updates, adam = torch.tensor(self.updates), optimizer_tensors(self.meta_optimizer)
        return {"clean": self.clean, "updates": updates, "meta_loss": self.meta_loss, **prefixed("adam", adam)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.clean = state["clean"].to(self.device)
        self.updates = int(state["updates"])
        self.meta_loss = state["meta_loss"].to(self.device)
        load_optimizer_tensors(self.meta_optimizer, without_prefix("adam", state))

    def _members(self) -> list[MetaScored]:
        return cast("list[MetaScored]", self.matcher.networks())

    def _meta_parameters(self) -> Iterator[torch.nn.Parameter]:
        for network in self._members():
            yield from network.meta_network.parameters()

    def _similarities(self, batch: Batch) -> Tensor:
        """Each network's similarities (2, b, b) in [0, 1]."""
        return torch.stack([network(batch) for network in self._members()]).float().sigmoid()

    def _meta_step(self, batch: Batch) -> Tensor:
        """Update both meta-networks; returns their mean loss before."""
        half = self.meta_batch // 2
        rows = torch.randperm(len(self.trusted.pairs))[:half]
        meta_loss = MetaLoss(self.trusted.take(rows.numpy()).to(self.device), batch[:half])
        for k, network in enumerate(self._members()):
            clean = self.clean[1 - k, batch.pair_id]
            gradients = meta_gradients(
                network, self._ranking_of(batch, clean), meta_loss, virtual_rate=self.virtual_rate
            )
            for name, parameter in network.meta_network.named_parameters():
                parameter.grad = gradients[name]
        self.meta_optimizer.step()
        self.meta_optimizer.zero_grad()
        return torch.stack(meta_loss.values).mean()

    def _ranking_of(self, batch: Batch, clean: Tensor) -> ForwardLoss:
        return lambda forward: self._ranking(forward(batch), batch, clean)

    def _ranking(self, logits: Tensor, batch: Batch, clean: Tensor) -> Tensor:
        """The sum of the hinges among the selected pairs: a scalar."""
        margin = self.margin * margin_factor(logits.diagonal().detach())
        same_part = clean[:, None] == clean[None, :]  # selected pairs have selected negatives only
        valid = same_part & candidate_mask(batch, self.mask_repeated_images)
        hinges = triplet(similarity_of(logits, self.similarity), margin=margin, reduction=self.negatives, valid=valid)
        return hinges.masked_fill(~clean, 0.0).sum()


class MetaLoss:
    """Binary cross-entropy of trusted pairs as matched and of a batch's random pairs as mismatched."""

    def __init__(self, trusted: Batch, others: Batch) -> None:
        self.trusted = trusted
        self.others = others
        self.values: list[Tensor] = []  # of each call

    def __call__(self, forward: Forward) -> Tensor:
        right = as_logits(forward(self.trusted)).diagonal()
        wrong, is_other = random_pairs(as_logits(forward(self.others)), self.others.image_id)
        label = torch.cat([torch.ones_like(right), torch.zeros_like(wrong)])
        counts = torch.cat([torch.ones_like(right), is_other.to(right.dtype)])
        losses = F.binary_cross_entropy_with_logits(torch.cat([right, wrong]), label, reduction="none")
        loss = (losses * counts).sum() / counts.sum()
        self.values.append(loss.detach())
        return loss


def margin_factor(logit: Tensor) -> Tensor:
    """The factor of the margin, by the logit of the pair: 1 / (1 + (p / (1 - p))^-2) with p = σ(logit)."""
    return (2 * logit).sigmoid()  # p / (1 - p) = exp(logit)


def random_pairs(scores: Tensor, image_id: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (..., b) of image i with text i + 1, and (b,) bool: whether that text is of another image.

    Args:
        scores: (..., b, b)
    """
    own = torch.arange(len(image_id), device=image_id.device)
    following = own.roll(-1)
    return scores[..., own, following], image_id != image_id[following]
