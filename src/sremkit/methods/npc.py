"""NPC: negative pre-aware training. A pair counts less if a step on its batch would harm trusted pairs like it.

After the warm-up a mixture over all losses finds trusted pairs. The memory of pair i are two of them: that with the
nearest image, and that with the nearest text. In each update

    theta' = theta - virtual_rate dL(theta)/dtheta,   L the cross-entropy of the batch
    r_i = mean over the two memory pairs of  loss at theta / loss at theta'
    w_i = 1 where r_i >= 1,  tanh(r_i) elsewhere: the step made the memory worse                    [eq:negative-impact]
    total = mean_i w_i (CE_i i2t + CE_i t2i) / 2 + memory_weight mean_i (loss of its two memory pairs)

The warm-up is InfoNCE over all pairs; a model that was trained before, such as CLIP, needs none.
Reference: Zhang et al., Negative Pre-aware for Noisy Cross-modal Matching, AAAI 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from sremkit.data.batch import Batch
from sremkit.methods.base import METHODS, Forward, Method, TrainingContext
from sremkit.methods.common.batch_scores import candidate_mask, pooled_vectors
from sremkit.methods.common.meta_step import without_recomputation
from sremkit.methods.common.mixtures import lower_gaussian_probability, rescaled
from sremkit.models.matcher import evaluating
from sremkit.objectives import Loss
from sremkit.objectives.contrastive import row_cross_entropy
from sremkit.objectives.logits import as_logits, mask_invalid, product
from sremkit.objectives.terms import PairReport

QUERY_CHUNK = 4096  # pairs whose nearest trusted pairs are found at a time
MIN_TRUSTED = 0.1  # share of the pairs; where the mixture trusts fewer, those of smallest loss


@METHODS.register("npc")
@dataclass(kw_only=True, eq=False)
class NPC(Method):
    """NPC: weights pairs by their effect on a memory of trusted pairs, which are trained on as well.

    Args:
        temperature: divides the logits in every term.
        virtual_rate: learning rate of the step that is tried on the memory.
        memory_weight: of the memory's own loss.
        min_trusted_prob: of the mixture's lower component; a pair above it is trusted.
        memory_every: epochs after which the memory is made anew; 0 keeps the first one, as published.
        mask_repeated_images: captions of the same image in a batch are not each other's negatives.
    """

    selects_pairs: ClassVar[bool] = True
    supports_processes: ClassVar[bool] = False
    supports_cuda_graphs: ClassVar[bool] = False  # memory pairs are read on the host

    temperature: float = 1.0
    virtual_rate: float = 0.1
    memory_weight: float = 1.0
    min_trusted_prob: float = 0.9
    memory_every: int = 0
    mask_repeated_images: bool = True

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if self.memory_every < 0:
            raise ValueError(f"memory_every must be at least 0, which keeps the first memory; got {self.memory_every}")
        self.memory = torch.zeros(2, 0, dtype=torch.int64)  # the trusted pairs by image and by text; empty before
        self.epochs = 0  # since the warm-up

    def start(self, context: TrainingContext) -> None:
        self.matcher, self.scan_pairs = context.require_scan()
        if context.take_pairs is None:
            raise ValueError("NPC reads pairs of its memory; start it with take_pairs")
        self.take_pairs: Callable[[Tensor], Batch] = context.take_pairs
        self.num_pairs, self.device = context.num_pairs, context.device
        self.memory = torch.zeros(2, 0, dtype=torch.int64, device=self.device)
        self.epochs = 0

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        """Make the memory, if it is time."""
        if warmup:
            return
        is_due = self.memory_every > 0 and self.epochs % self.memory_every == 0
        if is_due or self.memory.shape[1] == 0:
            self.memory = self._make_memory(epoch)
        self.epochs += 1

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        logits = forward(batch)
        own = self._losses(logits, batch)
        if warmup:
            return Loss(total=own.mean(), parts={"contrast": own.detach().mean()})
        memories = [self.take_pairs(rows) for rows in self.memory[:, batch.pair_id]]
        weight = self._weight(own.mean(), memories).to(own)
        logits.grad = None  # retained there by the trial step; the pull of the pairs is that of the weighted loss
        contrast = (weight * own).mean()
        memory = sum(self._losses(self.matcher(pairs), pairs).mean() for pairs in memories)
        return Loss(
            total=contrast + self.memory_weight * memory,
            parts={"contrast": contrast.detach(), "memory": torch.as_tensor(memory).detach()},
            report=PairReport(clean=weight >= 1, weight=weight.float()),
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {"memory": self.memory, "epochs": torch.tensor(self.epochs)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.memory = state["memory"].to(self.device)
        self.epochs = int(state["epochs"])

    def _losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """The cross-entropy of each pair (b,), mean of both directions."""
        valid = candidate_mask(batch, self.mask_repeated_images)
        masked = mask_invalid(as_logits(logits) / self.temperature, valid)  # a symmetric mask
        return (row_cross_entropy(masked) + row_cross_entropy(masked.T)) / 2

    def _weight(self, loss: Tensor, memories: list[Batch]) -> Tensor:
        """w (b,): the effect of a step down this loss on the two memory pairs of each pair."""
        weights = {name: p for name, p in self.matcher.named_parameters() if p.requires_grad}
        slopes = torch.autograd.grad(loss, list(weights.values()), retain_graph=True, materialize_grads=True)
        stepped = {
            name: p.detach() - self.virtual_rate * slope
            for (name, p), slope in zip(weights.items(), slopes, strict=True)
        }
        with torch.no_grad(), evaluating(self.matcher), without_recomputation(self.matcher):
            before, after = (self._memory_losses(memories, weights) for weights in ({}, stepped))
        return negative_impact_weight(before, after)

    def _memory_losses(self, memories: list[Batch], weights: Mapping[str, Tensor]) -> Tensor:
        """Losses (2, b) of the memory pairs with these weights in the place of the model's own."""
        return torch.stack(
            [self._losses(functional_call(self.matcher, dict(weights), (pairs,)), pairs) for pairs in memories]
        )

    @torch.no_grad()
    def _make_memory(self, epoch: int) -> Tensor:
        """(2, num_pairs) int64: of each pair the trusted ones with the nearest image and with the nearest text."""
        losses = torch.zeros(self.num_pairs, device=self.device)
        rows, images, texts = [], [], []
        with evaluating(self.matcher):
            for batch in self.scan_pairs(epoch):
                encoded_images, encoded_texts = self.matcher.encode(batch)
                logits = self.matcher.compare(encoded_images, encoded_texts)
                losses[batch.pair_id] = self._losses(logits, batch).to(losses)
                rows.append(batch.pair_id)
                images.append(pooled_vectors(encoded_images))
                texts.append(pooled_vectors(encoded_texts))
        trusted = trusted_pairs(losses, min_prob=self.min_trusted_prob)
        order = torch.cat(rows).argsort()
        found = [nearest(torch.cat(vectors)[order], trusted) for vectors in (images, texts)]
        return torch.stack(found)


def negative_impact_weight(before: Tensor, after: Tensor) -> Tensor:
    """w (b,) in [0, 1]: does a step on the batch make the memory pairs worse?

    Args:
        before: (2, b) losses of the trusted pairs by image and by text.
        after: (2, b), likewise after the step.
    """
    if before.shape != after.shape or before.ndim != 2:
        raise ValueError(f"before and after must both be (2, b); got {tuple(before.shape)} and {tuple(after.shape)}")
    tiny = torch.finfo(before.dtype).tiny  # a loss of exactly 0 stays one: 0 / 0 counts as no change
    ratio = ((before + tiny) / (after + tiny)).mean(dim=0)
    return torch.where(ratio >= 1, torch.ones_like(ratio), ratio.tanh())  # [eq:negative-impact]


def trusted_pairs(losses: Tensor, *, min_prob: float) -> Tensor:
    """(t,) int64, ascending: pairs that the mixture over all losses (n,) gives to its lower component."""
    probability = lower_gaussian_probability(rescaled(losses.cpu()))
    trusted = (probability > min_prob).nonzero().squeeze(1)
    least = max(1, int(MIN_TRUSTED * len(losses)))
    if len(trusted) < least:
        trusted = losses.cpu().argsort(stable=True)[:least].sort().values
    return trusted.to(losses.device)


def nearest(vectors: Tensor, among: Tensor) -> Tensor:
    """(n,) int64: for each of the vectors (n, d) the nearest by inner product among those of these numbers (t,)."""
    candidates = vectors[among].T  # (d, t)
    best = [product(chunk, candidates).argmax(dim=1) for chunk in vectors.split(QUERY_CHUNK)]
    return among[torch.cat(best)]
