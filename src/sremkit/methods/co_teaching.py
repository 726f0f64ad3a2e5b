"""Two networks that tell each other which pairs to believe: what NCR and BiCro have in common.

Before each epoch after the warm-up both networks look at all pairs, and a mixture divides the pairs by each network's
losses. Then each network learns from the *other* one's division, so that its own errors are not confirmed. Doubtful
pairs are ranked with a soft margin; how doubtful a pair is, its label, is what the methods differ in.

    L_k = sum over clean i of l_i  +  sum over noisy i of l_i (in the later epochs),   l_i with margin a(y_i)

Clean pairs have clean pairs as negatives and noisy pairs noisy ones, as if they came from two loaders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods import Method, Scorer, Surroundings
from sremkit.methods.division import select, stretched
from sremkit.methods.hinge import Similarity, similarity_of
from sremkit.models.matcher import Encoded, evaluating
from sremkit.objectives import Loss
from sremkit.objectives.candidates import distinct_images
from sremkit.objectives.soft_margin import Shape, soft_margin
from sremkit.objectives.triplet import Reduction, triplet


@dataclass(frozen=True, eq=False)
class View:
    """What one network makes of a batch in evaluation mode."""

    scores: Tensor  # (b, b) similarities
    images: Encoded
    texts: Encoded


@dataclass(frozen=True, eq=False)
class Side:
    """One network's lesson: what the other one thinks of the batch's pairs, and who may be whose negative."""

    clean: Tensor  # (b,) bool
    probability: Tensor  # (b,) of being clean
    valid: Tensor  # (b, b) bool: the same side of the division, and not the same image


class Strongest(NamedTuple):
    """Places for the strongest pairs of a group in a batch of b, the strongest first: t = b // 10 + 1 of them.

    There are as many as a batch full of members could need, so that no shape depends on how many there are.
    """

    pair: Tensor  # (..., t) int64: numbers in the batch, each once in a group
    present: Tensor  # (..., t) bool, False for a place that is left empty; its number means nothing


class CoTeaching(Method):
    """Two networks teach each other. Subclasses give `clean_probability` and `labels`.

    Args:
        similarity: "sigmoid" as published for SGR-like models, or "logit" for scaled cosines.
        margin: of a pair that is fully believed, in units of the similarity.
        margin_shape: how the margin grows with the label.
        margin_base: of the exponential shape.
        negatives: after the warm-up a pair is ranked against its "hardest" negative as published, or the "mean".
        noisy_after: epochs after the warm-up in which noisy pairs are left alone; published: half of them.
        mask_repeated_images: two captions of one image in a batch are nobody's negatives.
    """

    networks: ClassVar[int] = 2

    def __init__(
        self,
        *,
        similarity: Similarity = "sigmoid",
        margin: float = 0.2,
        margin_shape: Shape = "exponential",
        margin_base: float = 10.0,
        negatives: Reduction = "hardest",
        noisy_after: int = 20,
        mask_repeated_images: bool = True,
    ) -> None:
        self.similarity: Similarity = similarity
        self.margin = margin
        self.margin_shape: Shape = margin_shape
        self.margin_base = margin_base
        self.negatives: Reduction = negatives
        self.noisy_after = noisy_after
        self.mask_repeated_images = mask_repeated_images
        self.probability = torch.zeros(2, 0)  # (2, n): how likely each network finds each pair clean
        self.clean = torch.zeros(2, 0, dtype=torch.bool)
        self.divisions = 0  # made so far

    def clean_probability(self, losses: Tensor) -> Tensor:
        """How likely each pair is clean (n,), from all losses (n,) stretched to [0, 1]."""
        raise NotImplementedError

    def labels(self, views: list[View], network: int, side: Side) -> Tensor:
        """How far each pair is to be believed by this network: (b,) in [0, 1]."""
        raise NotImplementedError

    def warmup_hinges(self, scores: Tensor, valid: Tensor) -> Tensor:
        """Per-pair losses (b,) of one network before there is any division."""
        return triplet(scores, margin=self.margin, reduction="mean", valid=valid)

    def start(self, surroundings: Surroundings) -> None:
        self.matcher, self.every_pair = surroundings.whole()
        shape = (2, surroundings.num_pairs)
        self.probability = torch.ones(shape, device=surroundings.device)
        self.clean = torch.ones(shape, dtype=torch.bool, device=surroundings.device)
        self.divisions = 0

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        if warmup:
            return
        for network, losses in enumerate(self._losses_of_all(epoch)):
            probability = self.clean_probability(stretched(losses))
            clean = select(probability)
            if bool(clean.any()):  # else the mixture found nothing, and the division before it stays
                self.probability[network] = probability.to(self.probability)
                self.clean[network] = clean
        self.divisions += 1

    def loss(self, matcher: Scorer, batch: Batch, *, warmup: bool) -> Loss:
        scores = similarity_of(matcher(batch), self.similarity)  # (2, b, b)
        valid = self._distinct(batch)
        if warmup:
            hinges = torch.stack([self.warmup_hinges(s, valid) for s in scores])  # (2, b)
            return Loss(total=hinges.sum(), parts={"hinge": hinges.detach().mean()})
        views = self._views(batch)
        with_noisy = self.divisions > self.noisy_after  # the same in the whole epoch
        losses, labels, clean_shares = [], [], []
        for network in (0, 1):
            side = self._side(batch, valid, told_by=1 - network)
            with torch.no_grad():
                label = self.labels(views, network, side)
            margin = soft_margin(label, margin=self.margin, shape=self.margin_shape, base=self.margin_base)
            hinges = triplet(scores[network], margin=margin, reduction=self.negatives, valid=side.valid)
            used = torch.ones_like(side.clean) if with_noisy else side.clean
            losses.append((hinges * used).sum())
            labels.append(label.mean())
            clean_shares.append(side.clean.float().mean())
        total = losses[0] + losses[1]
        parts = {
            "hinge": total.detach() / (2 * len(batch)),
            "label": torch.stack(labels).mean(),
            "clean": torch.stack(clean_shares).mean(),
        }
        return Loss(total=total, parts=parts)

    def state_dict(self) -> dict[str, Tensor]:
        divisions = torch.tensor(self.divisions)
        return {"probability": self.probability, "clean": self.clean, "divisions": divisions}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.probability = state["probability"].to(self.probability)
        self.clean = state["clean"].to(self.clean)
        self.divisions = int(state["divisions"])

    @torch.no_grad()
    def _losses_of_all(self, round_: int) -> Tensor:
        """The mean hinge of every pair within a random batch, for each network: (2, n)."""
        losses = torch.zeros_like(self.probability)
        for batch in self.every_pair(round_):
            valid = self._distinct(batch)
            for network, view in enumerate(self._views(batch)):
                hinges = triplet(view.scores, margin=self.margin, reduction="mean", valid=valid)
                losses[network, batch.pair_id] = hinges.to(losses)
        return losses

    @torch.no_grad()
    def _views(self, batch: Batch) -> list[View]:
        views = []
        with evaluating(self.matcher):
            for network in self.matcher.networks():
                images, texts = network.encode_images(batch), network.encode_texts(batch)
                scores = similarity_of(network.compare(images, texts), self.similarity)
                views.append(View(scores, images, texts))
        return views

    def _side(self, batch: Batch, valid: Tensor, *, told_by: int) -> Side:
        clean = self.clean[told_by, batch.pair_id]
        same_side = clean[:, None] == clean[None, :]  # (b, b)
        return Side(clean, self.probability[told_by, batch.pair_id], valid & same_side)

    def _distinct(self, batch: Batch) -> Tensor:
        if self.mask_repeated_images:
            return distinct_images(batch.image_id)
        return torch.ones(len(batch), len(batch), dtype=torch.bool, device=batch.image_id.device)


def match_strength(scores: Tensor, *, margin: float, valid: Tensor) -> Tensor:
    """How well each pair holds against its negatives: P_i = [a - l_i / 2] in [0, a], l_i the mean hinges: (b,)."""
    return (margin - triplet(scores, margin=margin, reduction="mean", valid=valid) / 2).clamp(0, margin)


def best_tenth(strength: Tensor, among: Tensor) -> Strongest:
    """The strongest pairs `among` some: a tenth of them and one more; none where nobody is among.

    Args:
        strength: (b,)
        among: (..., b) bool, one or several such groups.
    """
    places = torch.arange(len(strength) // 10 + 1, device=strength.device)  # (t,)
    members_first = strength.masked_fill(~among, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    pair = members_first[..., : len(places)]  # (..., t)
    return Strongest(pair, (places <= among.sum(dim=-1, keepdim=True) // 10) & among.gather(-1, pair))


__all__ = ["CoTeaching", "Side", "Strongest", "View", "best_tenth", "match_strength"]
