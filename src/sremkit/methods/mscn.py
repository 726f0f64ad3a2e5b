"""MSCN: meta similarity correction. Trusted pairs teach a small network to score, and it says which pairs to keep.

Two networks, each a backbone with a meta-network on top. In the warm-up all of it learns from the mean hinge. Then,
in every epoch, each network keeps the pairs that look more like trusted pairs than like random ones, and the *other*
network learns from them. An update has two parts:

    meta-network:  Adam on the cross-entropy of trusted and of random pairs, through a virtual step of the backbone
    backbone:      L = sum over kept pairs of their hinges with soft margins,  margin / (1 + (p / (1 - p))^-2)

where p is the pair's similarity. Of the pairs that are not kept nothing is learned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods import METHODS, Method, Scorer, Surroundings
from sremkit.methods.known_heaps import probability_of_matching
from sremkit.methods.meta_step import ScoreLoss, meta_gradients
from sremkit.models import Matcher, build_matcher
from sremkit.models.matcher import evaluating
from sremkit.models.meta_scored import MetaScored
from sremkit.objectives import Loss
from sremkit.objectives.candidates import as_logits, distinct_images
from sremkit.objectives.triplet import Reduction, triplet


@METHODS.register("mscn")
class MSCN(Method):
    """MSCN: a meta-network taught by trusted pairs scores, filters and softens; two networks.

    Args:
        similarity: hinges on "sigmoid" scores as published, or on the "logit" for scaled cosines.
        margin: of the hinges, in units of the similarity.
        negatives: a kept pair is ranked against its "hardest" negative as published, or against the "mean".
        virtual_rate: learning rate of the virtual step; the training's own, as published.
        meta_rate: learning rate of the meta-network after the warm-up.
        meta_batch: pairs in a meta-step, one half trusted, the other random.
        meta_interval: updates from one meta-step to the next; 1 as published, more saves most of the time.
        mask_repeated_images: two captions of one image in a batch are nobody's negatives.
    """

    networks: ClassVar[int] = 2
    needs_trusted: ClassVar[bool] = True
    recordable: ClassVar[bool] = False  # every few updates there is a meta-step

    def __init__(
        self,
        *,
        similarity: Literal["sigmoid", "logit"] = "sigmoid",
        margin: float = 0.2,
        negatives: Reduction = "hardest",
        virtual_rate: float = 2e-4,
        meta_rate: float = 1.7e-5,
        meta_batch: int = 64,
        meta_interval: int = 1,
        mask_repeated_images: bool = True,
    ) -> None:
        if meta_batch < 2:
            raise ValueError(f"meta_batch must be at least 2, a right pair and a wrong one; got {meta_batch}")
        if meta_interval < 1:
            raise ValueError(f"meta_interval must be at least 1, got {meta_interval}")
        self.similarity = similarity
        self.margin = margin
        self.negatives: Reduction = negatives
        self.virtual_rate = virtual_rate
        self.meta_rate = meta_rate
        self.meta_batch = meta_batch
        self.meta_interval = meta_interval
        self.mask_repeated_images = mask_repeated_images
        self.kept = torch.zeros(2, 0, dtype=torch.bool)  # row k: by network k
        self.updates = 0  # since the warm-up
        self.meta_loss = torch.zeros(())  # of the last meta-step

    @classmethod
    def model(cls, backbone: str, **options: Any) -> Matcher:
        member = {"name": backbone, "options": options}
        return build_matcher("twins", member={"name": "meta-scored", "options": {"member": member}})

    def start(self, surroundings: Surroundings) -> None:
        self.matcher, self.every_pair = surroundings.whole()
        if surroundings.trusted is None:
            raise ValueError("MSCN learns from trusted pairs; start it with some")
        self.trusted = surroundings.trusted
        self.device = surroundings.device
        self.kept = torch.ones(2, surroundings.num_pairs, dtype=torch.bool, device=self.device)
        self.meta_loss = torch.zeros((), device=self.device)
        self.meta_optimizer = torch.optim.Adam(self._meta_parameters(), lr=self.meta_rate)

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        """Let each network say which pairs look like trusted ones."""
        if warmup:
            return
        given = torch.zeros(self.kept.shape, device=self.device)
        wrong: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad(), evaluating(self.matcher):
            for batch in self.every_pair(epoch):
                similarity = self._similarities(batch)
                given[:, batch.pair_id] = similarity.diagonal(dim1=1, dim2=2)
                wrong.append(random_pairs(similarity, batch.image_id))
            right = [
                self._similarities(batch.to(self.device)).diagonal(dim1=1, dim2=2)
                for batch in self.trusted.every_pair(epoch)
            ]
        # Selected here, and not in the batches: the host would wait for the number of each.
        is_other = torch.cat([other for _, other in wrong]).cpu()
        for k in range(2):
            matches = probability_of_matching(
                given[k].cpu(),
                right=torch.cat(right, dim=1)[k].cpu(),
                wrong=torch.cat([scores[k] for scores, _ in wrong]).cpu()[is_other],
            )
            self.kept[k] = (matches > 0.5).to(self.device)

    def loss(self, matcher: Scorer, batch: Batch, *, warmup: bool) -> Loss:
        for parameter in self._meta_parameters():
            parameter.requires_grad_(warmup)  # after the warm-up the training's optimiser leaves them alone
        if warmup:
            valid = distinct_images(batch.image_id) if self.mask_repeated_images else None
            ranking = [
                triplet(self._scores(f), margin=self.margin, reduction="mean", valid=valid).sum()
                for f in matcher(batch)
            ]
            return Loss(total=ranking[0] + ranking[1], parts={"ranking": (ranking[0] + ranking[1]).detach()})
        if self.updates % self.meta_interval == 0:
            self.meta_loss = self._meta_step(batch)
        self.updates += 1
        kept = self.kept[:, batch.pair_id]  # (2, b)
        logits = matcher(batch)  # (2, b, b)
        total = self._ranking(logits[0], batch, kept[1]) + self._ranking(logits[1], batch, kept[0])
        parts = {"ranking": total.detach(), "meta": self.meta_loss, "kept": kept.float().mean()}
        return Loss(total=total, parts=parts)

    def state_dict(self) -> dict[str, Tensor]:
        adam = self.meta_optimizer.state_dict()["state"]
        remembered = {f"adam/{i}/{key}": value for i, entry in adam.items() for key, value in entry.items()}
        counted = {"updates": torch.tensor(self.updates), "meta_loss": self.meta_loss}
        return {"kept": self.kept, **counted, **remembered}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.kept = state["kept"].to(self.device)
        self.updates = int(state["updates"])
        self.meta_loss = state["meta_loss"].to(self.device)
        adam: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            if name.startswith("adam/"):
                _, i, key = name.split("/")
                adam.setdefault(int(i), {})[key] = value.clone()  # Adam changes its memory in place
        groups = self.meta_optimizer.state_dict()["param_groups"]
        self.meta_optimizer.load_state_dict({"state": adam, "param_groups": groups})

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
        judging = Judging(self.trusted.take(rows.numpy()).to(self.device), batch[:half])
        for k, network in enumerate(self._members()):
            kept = self.kept[1 - k, batch.pair_id]
            gradients = meta_gradients(
                network, self._ranking_of(batch, kept), judging, virtual_rate=self.virtual_rate
            )
            for name, parameter in network.meta_network.named_parameters():
                parameter.grad = gradients[name]
        self.meta_optimizer.step()
        self.meta_optimizer.zero_grad()
        return torch.stack(judging.seen).mean()

    def _ranking_of(self, batch: Batch, kept: Tensor) -> ScoreLoss:
        return lambda score: self._ranking(score(batch), batch, kept)

    def _ranking(self, logits: Tensor, batch: Batch, kept: Tensor) -> Tensor:
        """The hinges among the kept pairs, summed up: a scalar."""
        margin = self.margin * correction(logits.diagonal().detach())
        valid = kept[:, None] == kept[None, :]  # kept pairs meet kept pairs only
        if self.mask_repeated_images:
            valid = valid & distinct_images(batch.image_id)
        hinges = triplet(self._scores(logits), margin=margin, reduction=self.negatives, valid=valid)
        return hinges.masked_fill(~kept, 0.0).sum()

    def _scores(self, logits: Tensor) -> Tensor:
        logits = as_logits(logits)
        return logits.sigmoid() if self.similarity == "sigmoid" else logits


class Judging:
    """Cross-entropy of trusted pairs as right and of a batch's random pairs as wrong; notes each value."""

    def __init__(self, trusted: Batch, others: Batch) -> None:
        self.trusted = trusted
        self.others = others
        self.seen: list[Tensor] = []

    def __call__(self, score: Scorer) -> Tensor:
        right = as_logits(score(self.trusted)).diagonal()
        wrong, is_other = random_pairs(as_logits(score(self.others)), self.others.image_id)
        label = torch.cat([torch.ones_like(right), torch.zeros_like(wrong)])
        counts = torch.cat([torch.ones_like(right), is_other.to(right.dtype)])
        losses = F.binary_cross_entropy_with_logits(torch.cat([right, wrong]), label, reduction="none")
        loss = (losses * counts).sum() / counts.sum()
        self.seen.append(loss.detach())
        return loss


def correction(logit: Tensor) -> Tensor:
    """The share of the margin that a pair's logit earns: 1 / (1 + (p / (1 - p))^-2) with p = σ(logit)."""
    return (2 * logit).sigmoid()  # p / (1 - p) = exp(logit)


def random_pairs(scores: Tensor, image_id: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (..., b) of each image with the text after its own, and (b,) bool: whether that is of another image.

    Args:
        scores: (..., b, b)
    """
    own = torch.arange(len(image_id), device=image_id.device)
    following = own.roll(-1)
    return scores[..., own, following], image_id != image_id[following]
