"""All terms of the objective, both directions, with their gradient, in a few passes over the logits.

`srem_reference` has the formulas; this computes the same numbers faster. Two ideas make it fast. The derivative of
every term is known in closed form, so no autograd graph over (b, b) matrices is kept. And the sums of a row exclude
its hardest negative phi, which is added separately:

    rest = logsumexp over j != phi,   probs = softmax over j != phi,   u = 1 - P_phi = sigmoid(rest - F_phi)
    P_j = u probs_j,   log(1 - P_phi) = logsigmoid(rest - F_phi),   P_j <= 1/2 for every other negative

so that everything stays exact when P_phi rounds to 1. With c_j = (B - 1) Q_j and G_j = c_j P_j / (1 - P_j), the
complementary loss of a row has the derivative

    j != phi:  G_j - probs_j (u sum_k G_k + c_phi P_phi)         j = phi:  P_phi (c_phi - sum_k G_k)

where the sums exclude phi. The derivative of the energy is -P.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from sremkit.objectives.fast.blocks import (
    Blocks,
    RowBlocks,
    RowMask,
    add_at,
    first_pass,
    logsumexp,
    set_at,
    set_pairs,
    take_at,
)
from sremkit.objectives.filtration import energy_bound
from sremkit.objectives.logits import count_valid, mask_value, mean_over
from sremkit.objectives.terms import Terms
from sremkit.objectives.weighting import scale_entropy


class SREMConfig(NamedTuple):
    """Hyperparameters of one call; the weights are 0 for terms that the warm-up or an ablation switch disables."""

    margin: float
    threshold: float
    clean_margin: float
    noisy_margin: float
    sharpness: float
    offset: float
    ranking_weight: float
    energy_weight: float
    complementary_weight: float
    filtration: bool  # False: every pair is clean
    weighting: bool  # False: every weight is 1
    complementary: bool  # False: the complementary loss is 0
    warmup: bool  # False: the hard negatives of clean rows are no complementary labels


class DirectionResult(NamedTuple):
    """Terms and statistics of one direction."""

    ranking: Tensor  # scalar
    energy_bound: Tensor  # scalar
    complementary: Tensor  # scalar
    energy: Tensor  # (b,)
    clean: Tensor  # (b,) bool
    weight: Tensor  # (b,)
    active: Tensor  # (b,) bool: clean and inside the hinge


class FusedResult(NamedTuple):
    """Both directions, and the gradient of the weighted sum of all terms."""

    i2t: DirectionResult
    t2i: DirectionResult
    gradient: Tensor  # (b, b), or (0, 0) if not computed

    def total(self, config: SREMConfig) -> Tensor:
        """The weighted sum of the terms."""
        return (
            config.ranking_weight * (self.i2t.ranking + self.t2i.ranking)
            + config.energy_weight * (self.i2t.energy_bound + self.t2i.energy_bound)
            + config.complementary_weight * (self.i2t.complementary + self.t2i.complementary)
        )

    def terms(self, total: Tensor, config: SREMConfig) -> Terms:
        """The result for the user; disabled terms are 0."""
        both = {name: (getattr(self.i2t, name), getattr(self.t2i, name)) for name in DirectionResult._fields}
        zeros = (torch.zeros_like(self.i2t.ranking),) * 2
        if config.warmup or not config.filtration:
            both["energy_bound"] = zeros
        if config.warmup:
            both["ranking"], both["active"] = zeros, (torch.zeros_like(self.i2t.active),) * 2
        return Terms.of(total, **both)


class Queries(NamedTuple):
    """The inputs of the second pass for each row; every tensor is (b,)."""

    positive: Tensor  # F_ii
    hard: Tensor  # F_i,phi(i)
    hard_index: Tensor  # phi(i)
    rest: Tensor  # logsumexp over the row without phi(i); exact in every row only for a single block
    clean: Tensor  # bool
    used: Tensor  # bool: the hard negative is no complementary label
    label_scale: Tensor  # B - 1, or 0 for a row without labels
    set_size: Tensor  # number of pairs in the same set, clean or noisy

    def at(self, rows: slice) -> Queries:
        """The same for a block of rows."""
        return Queries(*(per_row[rows] for per_row in self))


class Split(NamedTuple):
    """The probability of a row, split into its hardest negative and the rest; every tensor is (k,)."""

    p_hard: Tensor  # P_i,phi(i)
    p_rest: Tensor  # u = 1 - P_i,phi(i), without cancellation
    log_p_hard: Tensor
    log_p_rest: Tensor


def split(hard: Tensor, rest: Tensor) -> Split:
    lead = hard - rest
    return Split(lead.sigmoid(), (-lead).sigmoid(), logsigmoid(lead), logsigmoid(-lead))


class Direction(NamedTuple):
    """The result of both passes over one direction, before the ranking; every tensor is (b,) but for the loss."""

    positive: Tensor
    hard: Tensor
    hard_index: Tensor
    has_negative: Tensor  # bool
    energy: Tensor
    clean: Tensor  # bool
    weight: Tensor
    complementary: Tensor  # scalar


class Ranked(NamedTuple):
    """The result of one direction, and the derivative of its ranking loss with respect to two logits of each row."""

    result: DirectionResult
    grad_positive: Tensor  # (b,) by F_ii
    grad_hard: Tensor  # (b,) by F_i,phi(i)
    hard_index: Tensor  # (b,) phi(i)


@torch.no_grad()
def evaluate(logits: Tensor, valid: Tensor | None, config: SREMConfig, *, with_gradient: bool) -> FusedResult:
    """Every term, unweighted, and the gradient of their weighted sum; `valid` (b, b) is symmetric."""
    gradient = logits.new_empty(logits.shape if with_gradient else (0, 0))
    target = gradient if with_gradient else None
    excluded = None if valid is None else ~valid
    i2t, t2i = both_directions(RowBlocks(logits), excluded, count_valid(logits, valid), config, target)
    if with_gradient:
        add_at(gradient, i2t.hard_index, i2t.grad_hard)
        add_at(gradient.T, t2i.hard_index, t2i.grad_hard)
        gradient.diagonal().add_(i2t.grad_positive + t2i.grad_positive)
    return FusedResult(i2t.result, t2i.result, gradient)


def both_directions(
    blocks: Blocks, excluded: RowMask | None, candidates: Tensor, config: SREMConfig, gradient: Any
) -> tuple[Ranked, Ranked]:
    """i2t and t2i. The target of the gradient receives all terms but the ranking losses.

    Args:
        excluded: rows of a symmetric (b, b) mask, True for masked candidates.
        candidates: (b,) number of candidates that are not masked.
        gradient: the target of `blocks.write_gradient`, or None.
    """
    # The transposed direction comes first: it writes the gradient, the other one adds to it.
    t2i = direction(blocks.T, excluded, candidates, config, gradient)
    i2t = direction(blocks, excluded, candidates, config, gradient)
    return rank(i2t, t2i.weight, config), rank(t2i, i2t.weight, config)


def direction(
    blocks: Blocks, excluded: RowMask | None, candidates: Tensor, config: SREMConfig, gradient: Any
) -> Direction:
    """One direction in two passes: the gradient of a pair depends on the number of clean pairs."""
    found = [first_pass(blocks, rows, excluded, config.threshold) for rows in blocks]
    positive, hard, hard_index, rest = (blocks.gather(parts) for parts in zip(*found, strict=True))
    clean = (positive > hard) & (-torch.logaddexp(rest, hard) < config.threshold)
    clean = clean if config.filtration else torch.ones_like(clean)
    used = torch.zeros_like(clean) if config.warmup else clean
    label_scale = (candidates - 1).where(candidates - 1 > used.to(candidates.dtype), 0.0)
    set_size = clean.sum().where(clean, (~clean).sum())
    queries = Queries(positive, hard, hard_index, rest, clean, used, label_scale, set_size)

    results = [_second_pass(blocks, rows, excluded, queries.at(rows), config, gradient) for rows in blocks]
    rest, rest_entropy, loss = (blocks.gather(parts) for parts in zip(*results, strict=True))
    energy = -torch.logaddexp(rest, hard)
    row = split(hard, rest)
    entropy = row.p_rest * (rest_entropy - row.log_p_rest) - row.p_hard * row.log_p_hard
    unsatisfied = (config.margin - positive.sigmoid() + hard.sigmoid() > 0) & config.weighting
    weight = 1 - scale_entropy(entropy, candidates).where(unsatisfied, 0.0)
    return Direction(positive, hard, hard_index, candidates > 1, energy, clean, weight, loss.mean())


def _second_pass(
    blocks: Blocks, rows: slice, excluded: RowMask | None, queries: Queries, config: SREMConfig, gradient: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Logsumexp and entropy without phi, and complementary loss, each (k,); adds to the gradient."""
    block, probs, labels, work = blocks.buffers(rows)
    if not blocks.single:  # the first pass leaves a single block in the buffers
        blocks.load(rows, into=block, scratch=probs)
        if excluded is not None:
            block.masked_fill_(excluded[rows], mask_value(block.dtype))
        set_at(block, queries.hard_index, mask_value(block.dtype))
        set_pairs(block, rows, queries.positive)  # in a row without a negative, phi may be the pair itself
        torch.softmax(block, dim=1, out=probs)
    rest = queries.rest if blocks.single else logsumexp(block, probs)
    row = split(queries.hard, rest)
    slope = _energy_slope(-torch.logaddexp(rest, queries.hard), queries, config)
    if config.complementary:
        _label_weights(torch.sigmoid(block, out=labels), work, rows, excluded, queries, config)
    rest_entropy = -block.sub_(rest[:, None]).mul_(probs).sum(dim=1)

    if not config.complementary:
        if gradient is not None:
            probs.mul_((-slope * row.p_rest)[:, None])
            add_at(probs, queries.hard_index, -slope * row.p_hard)
            blocks.write_gradient(gradient, rows, probs, scratch=work)
        return rest, rest_entropy, torch.zeros_like(rest_entropy)

    negative_p = torch.mul(probs, -row.p_rest[:, None], out=work)
    set_pairs(negative_p, rows, 0.0)
    label_hard = take_at(labels, queries.hard_index)
    log_rest = torch.log1p(negative_p, out=block).mul_(labels).sum(dim=1)
    loss = -queries.label_scale * (log_rest + label_hard * row.log_p_rest)
    if gradient is not None:
        push = labels.mul_(probs).div_(negative_p.add_(1))  # Q probs / (1 - P), that is G / (c u)
        pushed = row.p_rest * push.sum(dim=1)
        scale = queries.label_scale * (config.complementary_weight / len(blocks))
        pull = row.p_rest * (scale * pushed + slope) + scale * label_hard * row.p_hard
        push.mul_((scale * row.p_rest)[:, None]).addcmul_(probs, pull[:, None], value=-1)
        grad_hard = row.p_hard * (scale * (label_hard - pushed) - slope)
        add_at(push, queries.hard_index, grad_hard)
        blocks.write_gradient(gradient, rows, push, scratch=work)
    return rest, rest_entropy, loss


def _label_weights(
    scores: Tensor, scratch: Tensor, rows: slice, excluded: RowMask | None, queries: Queries, config: SREMConfig
) -> None:
    """Turn a block of sigmoid scores into Q, in place."""
    lowest = mask_value(scores.dtype)
    set_at(scores, queries.hard_index, queries.hard.sigmoid())
    if config.sharpness != 1:
        scores.mul_(config.sharpness)
    if excluded is not None:
        scores.masked_fill_(excluded[rows], lowest)
    # The pair represents the 1 in the denominator. A softmax is invariant to the common shift of the exponents.
    set_pairs(scores, rows, config.sharpness * config.offset)
    likelihood = torch.softmax(scores, dim=1, out=scratch)
    if excluded is not None:
        likelihood.masked_fill_(excluded[rows], lowest)
    hard_likelihood = take_at(likelihood, queries.hard_index)
    set_at(likelihood, queries.hard_index, hard_likelihood.masked_fill(queries.used, lowest))
    set_pairs(likelihood, rows, lowest)
    torch.softmax(likelihood, dim=1, out=scores)


def _energy_slope(energy: Tensor, queries: Queries, config: SREMConfig) -> Tensor:
    """Derivative (k,) of the weighted energy bound with respect to each energy."""
    excess = (energy - config.clean_margin).relu().where(queries.clean, -(config.noisy_margin - energy).relu())
    return 2 * config.energy_weight * excess / queries.set_size


def rank(found: Direction, weight: Tensor, config: SREMConfig) -> Ranked:
    """All terms and statistics of one direction; its ranking loss uses the weights of the other."""
    score, hard_score = found.positive.sigmoid(), found.hard.sigmoid()
    hinge = (config.margin - weight * score + hard_score).relu().where(found.has_negative, 0.0)
    active = found.clean & (hinge > 0)
    step = config.ranking_weight / found.clean.sum().clamp_min(1).to(score.dtype)
    margins = {"clean_margin": config.clean_margin, "noisy_margin": config.noisy_margin}
    result = DirectionResult(
        ranking=mean_over(hinge, found.clean),
        energy_bound=energy_bound(found.energy, found.clean, **margins),
        complementary=found.complementary,
        energy=found.energy,
        clean=found.clean,
        weight=found.weight,
        active=active,
    )
    grad_positive = (-step * weight * score * (1 - score)).where(active, 0.0)
    grad_hard = (step * hard_score * (1 - hard_score)).where(active, 0.0)
    return Ranked(result, grad_positive, grad_hard, found.hard_index)
