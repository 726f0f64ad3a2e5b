"""Co-teaching of two networks: what NCR and BiCro have in common.

Before each epoch after the warm-up both networks score all pairs, and a mixture over each network's losses splits the
pairs into clean and noisy. Each network is trained on the *other* one's split, so that it does not confirm its own
errors. Doubtful pairs are ranked with a soft margin a(y_i); the methods differ in how they compute the label y_i.

    L_k = sum over clean i of l_i  +  sum over noisy i of l_i (in the later epochs),   l_i with margin a(y_i)

Clean pairs have clean pairs as negatives and noisy pairs noisy ones, as if they came from two loaders.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods.base import Forward, Method, TrainingContext
from sremkit.methods.common.batch_scores import Similarity, candidate_mask, similarity_of
from sremkit.methods.common.mixtures import rescaled, split_clean
from sremkit.models.matcher import Encoded, evaluating
from sremkit.objectives import Loss
from sremkit.objectives.terms import PairReport
from sremkit.objectives.triplet import Reduction, Shape, soft_margin, triplet


@dataclass(frozen=True, eq=False)
class Prediction:
    """One network's result for a batch in evaluation mode."""

    scores: Tensor  # (b, b) similarities
    images: Encoded
    texts: Encoded


@dataclass(frozen=True, eq=False)
class PeerSplit:
    """The other network's split of a batch, which a network is trained on."""

    clean: Tensor  # (b,) bool
    probability: Tensor  # (b,) of being clean
    valid: Tensor  # (b, b) bool: candidates of the same part of the split, not of the same image


class Strongest(NamedTuple):
    """The strongest pairs of a group in a batch of b, in t = b // 10 + 1 slots, the strongest first.

    The number of slots is that of a group as large as the batch, so that no shape depends on the group.
    """

    pair: Tensor  # (..., t) int64: numbers in the batch, each once in a group
    present: Tensor  # (..., t) bool, False for an empty slot, whose number has no meaning


@dataclass(kw_only=True, eq=False)
class CoTeaching(Method):
    """Two networks train each other. Subclasses implement `clean_posterior` and `labels`.

    Args:
        similarity: "sigmoid" as published for SGR-like models, or "logit" for scaled cosines.
        margin: of a pair with label 1, in units of the similarity.
        margin_shape: how the margin grows with the label: exponential, linear or sine.
        margin_base: of the exponential shape.
        negatives: after the warm-up a pair is ranked against its "hardest" negative as published, or the "mean".
        noisy_after: epochs after the warm-up in which noisy pairs are not used; published: half of them.
        mask_repeated_images: captions of the same image in a batch are not each other's negatives.
    """

    networks: ClassVar[int] = 2
    selects_pairs: ClassVar[bool] = True
    uncompiled: ClassVar[tuple[str, ...]] = ("_predict",)

    similarity: Similarity = "sigmoid"
    margin: float = 0.2
    margin_shape: Shape = "exponential"
    margin_base: float = 10.0
    negatives: Reduction = "hardest"
    noisy_after: int = 20
    mask_repeated_images: bool = True

    def __post_init__(self) -> None:
        self.probability = torch.zeros(2, 0)  # (2, n) of being clean, by each network
        self.clean = torch.zeros(2, 0, dtype=torch.bool)
        self.num_splits = 0
        self.learns_noisy = False  # whether noisy pairs are trained on in this epoch

    def clean_posterior(self, losses: Tensor) -> Tensor:
        """The probability that each pair is clean (n,), from all losses (n,) rescaled to [0, 1]."""
        raise NotImplementedError

    def labels(self, predictions: list[Prediction], network: int, split: PeerSplit) -> Tensor:
        """The soft label of each pair for this network: (b,) in [0, 1]."""
        raise NotImplementedError

    def warmup_hinges(self, scores: Tensor, valid: Tensor) -> Tensor:
        """Per-pair losses (b,) of one network before the first split."""
        return triplet(scores, margin=self.margin, reduction="mean", valid=valid)

    def start(self, context: TrainingContext) -> None:
        self.matcher, self.scan_pairs = context.require_scan()
        shape = (2, context.num_pairs)
        self.probability = torch.ones(shape, device=context.device)
        self.clean = torch.ones(shape, dtype=torch.bool, device=context.device)
        self.num_splits = 0

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        if warmup:
            return
        for network, losses in enumerate(self._scan_losses(epoch)):
            probability = self.clean_posterior(rescaled(losses))
            clean = split_clean(probability)
            if bool(clean.any()):  # otherwise the mixture found nothing, and the previous split stays
                self.probability[network] = probability.to(self.probability)
                self.clean[network] = clean
        self.num_splits += 1
        self.learns_noisy = self.num_splits > self.noisy_after

    def graph_key(self) -> Hashable:
        return self.learns_noisy  # the pairs are divided in place

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        scores = similarity_of(forward(batch), self.similarity)  # (2, b, b)
        valid = self._valid(batch)
        if warmup:
            hinges = torch.stack([self.warmup_hinges(s, valid) for s in scores])  # (2, b)
            return Loss(total=hinges.sum(), parts={"hinge": hinges.detach().mean()})
        predictions = self._predict(batch)
        with_noisy = self.learns_noisy
        losses, labels, clean = [], [], []
        for network in (0, 1):
            split = self._split(batch, valid, by=1 - network)
            with torch.no_grad():
                label = self.labels(predictions, network, split)
            margin = soft_margin(label, margin=self.margin, shape=self.margin_shape, base=self.margin_base)
            hinges = triplet(scores[network], margin=margin, reduction=self.negatives, valid=split.valid)
            used = torch.ones_like(split.clean) if with_noisy else split.clean
            losses.append((hinges * used).sum())
            labels.append(label)
            clean.append(split.clean)
        total = losses[0] + losses[1]
        return Loss(
            total=total,
            parts={"hinge": total.detach() / (2 * len(batch))},
            report=PairReport(clean=clean[0] & clean[1], weight=torch.stack(labels).mean(dim=0)),
        )

    def state_dict(self) -> dict[str, Tensor]:
        num_splits = torch.tensor(self.num_splits)
        return {"probability": self.probability, "clean": self.clean, "num_splits": num_splits}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.probability = state["probability"].to(self.probability)
        self.clean = state["clean"].to(self.clean)
        self.num_splits = int(state["num_splits"])
        self.learns_noisy = self.num_splits > self.noisy_after

    @torch.no_grad()
    def _scan_losses(self, round_: int) -> Tensor:
        """The mean hinge of every pair within a random batch, by each network: (2, n)."""
        losses = torch.zeros_like(self.probability)
        for batch in self.scan_pairs(round_):
            valid = self._valid(batch)
            for network, prediction in enumerate(self._predict(batch)):
                hinges = triplet(prediction.scores, margin=self.margin, reduction="mean", valid=valid)
                losses[network, batch.pair_id] = hinges.to(losses)
        return losses

    @torch.no_grad()
    def _predict(self, batch: Batch) -> list[Prediction]:
        predictions = []
        with evaluating(self.matcher):
            for network in self.matcher.networks():
                images, texts = network.encode_images(batch), network.encode_texts(batch)
                scores = similarity_of(network.compare(images, texts), self.similarity)
                predictions.append(Prediction(scores, images, texts))
        return predictions

    def _split(self, batch: Batch, valid: Tensor, *, by: int) -> PeerSplit:
        clean = self.clean[by, batch.pair_id]
        same_part = clean[:, None] == clean[None, :]  # (b, b)
        return PeerSplit(clean, self.probability[by, batch.pair_id], valid & same_part)

    def _valid(self, batch: Batch) -> Tensor:
        return candidate_mask(batch, self.mask_repeated_images)


def match_strength(scores: Tensor, *, margin: float, valid: Tensor) -> Tensor:
    """P_i = [a - l_i / 2] in [0, a] (b,), with l_i the mean hinges of a pair against its negatives."""
    return (margin - triplet(scores, margin=margin, reduction="mean", valid=valid) / 2).clamp(0, margin)


def best_tenth(strength: Tensor, among: Tensor) -> Strongest:
    """The strongest pairs of a group: a tenth of its members and one more; none of an empty group.

    Args:
        strength: (b,)
        among: (..., b) bool, the members of one or several groups.
    """
    slots = torch.arange(len(strength) // 10 + 1, device=strength.device)  # (t,)
    members_first = strength.masked_fill(~among, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    pair = members_first[..., : len(slots)]  # (..., t)
    return Strongest(pair, (slots <= among.sum(dim=-1, keepdim=True) // 10) & among.gather(-1, pair))
