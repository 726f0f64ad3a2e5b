"""IN2R: intra-modal neighbours rectify noisy pairs. Two networks, each with a memory of confident pairs.

Each network is trained on the other one's split, as in NCR. With v_i, t_i the unit vectors of image and text:

    clean:  hinges of the logits + hinges of cos(v_i, v'_j) + hinges of cos(t_i, t'_j),  v', t' a second pass with other
            dropout masks
    noisy:  prototype_weight (loss of v_i with prototypes of texts + loss of t_i with prototypes of images)

A prototype comes from the neighbours of image or text i in the *other* network's memory (`objectives/prototypes.py`),
refined by attention among the neighbours. Pairs that are more probably clean than the average clean pair enter the
memory. Both networks begin with the same weights, so that their vectors can be compared. In the warm-up logits and both
cosines are trained by symmetric cross-entropy.
Reference: Intra-Modal Neighbors Never Lie: Rectifying Inter-Modal Noisy Correspondence via Graph-Based Intra-Modal
Reasoning, ICML 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from sremkit.data.batch import Batch
from sremkit.methods.base import METHODS, Forward, TrainingContext
from sremkit.methods.common.batch_scores import pooled_vectors, similarity_of
from sremkit.methods.common.co_teaching import CoTeaching
from sremkit.methods.common.mixtures import lower_gaussian_probability
from sremkit.methods.common.state_dicts import load_optimizer_tensors, optimizer_tensors, prefixed, without_prefix
from sremkit.models import Matcher
from sremkit.models.wrappers.two_networks import TwoNetworks
from sremkit.objectives import Loss
from sremkit.objectives.contrastive import symmetric_cross_entropy
from sremkit.objectives.logits import product
from sremkit.objectives.prototypes import mean_prototype, neighbour_values, prototype_loss
from sremkit.objectives.terms import PairReport
from sremkit.objectives.triplet import triplet

IMAGE, TEXT = 0, 1


@METHODS.register("in2r")
@dataclass(kw_only=True, eq=False)
class IN2R(CoTeaching):
    """IN2R: two networks; noisy pairs learn prototypes from the neighbours of their image and of their text.

    Args:
        margin_shape: without effect; margins are not softened.
        margin_base: likewise.
        noisy_after: epochs after the warm-up in which noisy pairs are not used; published: none.
        temperature: divides the similarity in the warm-up.
        vector_margin: of the hinges within a modality, in units of the cosine.
        vector_temperature: divides cosines, in the warm-up and in the loss of the prototypes.
        prototype_weight: of noisy pairs.
        num_neighbours: whose values make a prototype.
        memory_size: pairs in the memory of each network, at most; the oldest are replaced.
        refine: whether attention among the neighbours refines a prototype; otherwise it is their mean.
        refiner_rate: learning rate of that attention.
        refiner_heads: its heads.
    """

    supports_cuda_graphs: ClassVar[bool] = False  # the memory grows

    noisy_after: int = 0
    temperature: float = 0.05
    vector_margin: float = 0.3
    vector_temperature: float = 0.05
    prototype_weight: float = 0.5
    num_neighbours: int = 5
    memory_size: int = 65536
    refine: bool = True
    refiner_rate: float = 5e-4
    refiner_heads: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("temperature", "vector_temperature"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if min(self.num_neighbours, self.memory_size, self.refiner_heads) < 1:
            raise ValueError("num_neighbours, memory_size and refiner_heads must be at least 1")
        self.memories = [Memory(self.memory_size), Memory(self.memory_size)]
        self.refiners: nn.ModuleList | None = None  # (network, modality of the prototype) in a row; made when needed
        self.threshold = [1.0, 1.0]  # mean clean probability of the pairs that each network takes for clean

    @classmethod
    def model(cls, backbone: str, **options: Any) -> Matcher:
        matcher = super().model(backbone, **options)
        assert isinstance(matcher, TwoNetworks)
        first, second = matcher.pair()
        second.load_state_dict(first.state_dict())
        return matcher

    @classmethod
    def example_options(cls) -> dict[str, Any]:
        return {"similarity": "logit", "temperature": 1.0, "margin": 2.0}

    def start(self, context: TrainingContext) -> None:
        super().start(context)
        self.memories = [Memory(min(self.memory_size, context.num_pairs)) for _ in range(2)]
        self.refiners, self.threshold = None, [1.0, 1.0]

    def clean_posterior(self, losses: Tensor) -> Tensor:
        return lower_gaussian_probability(losses)

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        super().begin_epoch(epoch, warmup=warmup)
        self.threshold = [self._mean_of_clean(k) for k in (0, 1)]

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        scores = similarity_of(forward(batch), self.similarity)  # (2, b, b)
        distinct = self._valid(batch)
        total, noisy_total, clean = scores.new_zeros(()), scores.new_zeros(()), []
        for k, network in enumerate(self.matcher.networks()):
            vectors, second = (
                [pooled_vectors(encoded).to(scores) for encoded in network.encode(batch)] for _ in range(2)
            )
            within = [product(own, other.T) for own, other in zip(vectors, second, strict=True)]
            if warmup:
                total = total + self._warmup_loss(scores[k], within, distinct)
                continue
            split = self._split(batch, distinct, by=1 - k)
            hinges = triplet(scores[k], margin=self.margin, reduction=self.negatives, valid=split.valid)
            for cosines in within:
                hinges = hinges + triplet(
                    cosines, margin=self.vector_margin, reduction=self.negatives, valid=split.valid
                )
            total = total + hinges.masked_fill(~split.clean, 0.0).sum()
            clean.append(split.clean)
            if self.num_splits > self.noisy_after:
                noisy_total = noisy_total + self._prototype_losses(k, vectors, ~split.clean)
            confident = split.clean & (split.probability > self.threshold[1 - k])
            self.memories[k].add(*(own.detach()[confident] for own in vectors))
        if warmup:
            return Loss(total=total, parts={"symmetric": total.detach()})
        if noisy_total.requires_grad:
            self._learn_refiners(noisy_total)
        parts = {"hinge": total.detach() / (2 * len(batch)), "prototype": noisy_total.detach()}
        probability = self.probability[:, batch.pair_id].mean(dim=0)
        return Loss(
            total=total + self.prototype_weight * noisy_total,
            parts=parts,
            report=PairReport(clean=clean[0] & clean[1], weight=probability.float()),
        )

    def state_dict(self) -> dict[str, Tensor]:
        state = {**super().state_dict(), "threshold": torch.tensor(self.threshold, dtype=torch.float64)}
        for k, memory in enumerate(self.memories):
            state |= prefixed(f"memory/{k}", memory.state_dict())
        if self.refiners is not None:
            state |= {name: t.clone() for name, t in prefixed("refiners", self.refiners.state_dict()).items()}
            state |= prefixed("adam", optimizer_tensors(self.refiner_optimizer))
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.threshold = state["threshold"].tolist()
        for k, memory in enumerate(self.memories):
            memory.load_state_dict(without_prefix(f"memory/{k}", state), self.clean.device)
        weights = without_prefix("refiners", state)
        self.refiners = None
        if weights:
            refiners = self._require_refiners(weights["0.norm.weight"].to(self.clean.device))
            refiners.load_state_dict(weights)
            load_optimizer_tensors(self.refiner_optimizer, without_prefix("adam", state))

    def _mean_of_clean(self, network: int) -> float:
        clean = self.clean[network]
        return float(self.probability[network][clean].mean()) if bool(clean.any()) else 1.0

    def _warmup_loss(self, scores: Tensor, within: list[Tensor], distinct: Tensor) -> Tensor:
        total = scores.new_zeros(())
        for logits in (scores / self.temperature, *(cosines / self.vector_temperature for cosines in within)):
            i2t, t2i = (symmetric_cross_entropy(f, valid=distinct) for f in (logits, logits.T))
            total = total + (i2t + t2i).mean()
        return total

    def _prototype_losses(self, network: int, vectors: list[Tensor], noisy: Tensor) -> Tensor:
        """The losses of a network's noisy images and texts with their prototypes; 0 as long as there are none."""
        memory = self.memories[1 - network]
        total = vectors[IMAGE].new_zeros(())
        if len(memory) < self.num_neighbours or int(noisy.sum()) < 2:
            return total
        for modality in (IMAGE, TEXT):
            queries = vectors[modality][noisy]
            values = neighbour_values(
                queries,
                memory.of(modality).to(queries),
                memory.of(1 - modality).to(queries),
                num_neighbours=self.num_neighbours,
            )
            prototypes = self._refined(values, network, 1 - modality)
            total = total + prototype_loss(queries, prototypes, temperature=self.vector_temperature)
        return total

    def _refined(self, neighbours: Tensor, network: int, modality: int) -> Tensor:
        if not self.refine:
            return mean_prototype(neighbours)
        refiner = self._require_refiners(neighbours)[2 * network + modality]
        # With copies of its weights: they are updated before the backward pass of the networks.
        weights = {name: p.clone().to(neighbours) for name, p in refiner.named_parameters()}
        return functional_call(refiner, weights, (neighbours,))

    def _require_refiners(self, like: Tensor) -> nn.ModuleList:
        if self.refiners is None:
            width = like.shape[-1]
            self.refiners = nn.ModuleList(NeighbourAttention(width, self.refiner_heads) for _ in range(4))
            self.refiners.to(like.device)
            self.refiner_optimizer = torch.optim.Adam(self.refiners.parameters(), lr=self.refiner_rate)
        return self.refiners

    def _learn_refiners(self, loss: Tensor) -> None:
        """One step of the refiners down this loss, whose graph is kept for the networks."""
        if self.refiners is None:
            return
        parameters = list(self.refiners.parameters())
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.refiner_optimizer.step()
        self.refiner_optimizer.zero_grad()


class NeighbourAttention(nn.Module):
    """A unit vector (b, d) from k neighbours (b, k, d): self-attention with a residual, layer norm, mean."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"refiner_heads must divide the width of a vector, {width}; got {heads}")
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, neighbours: Tensor) -> Tensor:
        context, _ = self.attention(neighbours, neighbours, neighbours, need_weights=False)
        return F.normalize(self.norm(neighbours + context).mean(dim=1), dim=-1)


class Memory:
    """The vectors of the last `size` pairs that were added, images and texts; the oldest are replaced first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.vectors = torch.zeros(2, 0, 0)  # (modality, pairs so far up to size, d)
        self.added = 0

    def __len__(self) -> int:
        return self.vectors.shape[1]

    def of(self, modality: int) -> Tensor:
        """(pairs, d)"""
        return self.vectors[modality]

    def add(self, images: Tensor, texts: Tensor) -> None:
        """Add pairs (n, d)."""
        new = torch.stack([images, texts])[:, -self.size :]  # (2, n, d)
        if new.shape[1] == 0:
            return
        if len(self) == 0:
            self.vectors = new.new_zeros(2, 0, new.shape[2])
        room = self.size - len(self)
        self.vectors = torch.cat([self.vectors, new[:, :room]], dim=1)
        rest = new[:, room:]
        if rest.shape[1]:
            places = (self.added + min(room, new.shape[1]) + torch.arange(rest.shape[1])) % self.size
            self.vectors[:, places] = rest
        self.added += new.shape[1]

    def state_dict(self) -> dict[str, Tensor]:
        return {"vectors": self.vectors, "added": torch.tensor(self.added)}

    def load_state_dict(self, state: dict[str, Tensor], device: torch.device) -> None:
        self.vectors = state["vectors"].to(device).clone()  # changed in place
        self.added = int(state["added"])
