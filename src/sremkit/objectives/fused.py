"""All terms of the objective, both directions, with their gradient, in a few passes over the logits.

The public functions are the formulas; these are the same numbers, faster, and the tests hold them to each
other. Two ideas make it fast. The derivative of every term is known in closed form, so no graph over (b, b)
matrices is kept. And the sums of a row leave out its hardest negative phi, which is added back by itself:

    rest = logsumexp over j != phi,   share = softmax over j != phi,   u = 1 - P_phi = sigmoid(rest - F_phi)
    P_j = u share_j,   log(1 - P_phi) = logsigmoid(rest - F_phi),   P_j <= 1/2 for every other negative

so that everything stays exact when the hardest negative takes all of the probability. With c_j = (B - 1)
Q_j and G_j = c_j P_j / (1 - P_j), the complementary loss of a row has the derivative

    j != phi:  G_j - share_j (u sum_k G_k + c_phi P_phi)         j = phi:  P_phi (c_phi - sum_k G_k)

where the sums leave phi out; that of the energy is -P.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from sremkit.objectives.blocks import Blocks, RowBlocks, add_at, set_at, set_pairs, take_at
from sremkit.objectives.candidates import count_valid, low
from sremkit.objectives.energy import energy_bound, mean_over
from sremkit.objectives.entropy import scaled_entropy
from sremkit.objectives.survey import RowMask, logsumexp, survey


class Plan(NamedTuple):
    """What is computed, and how much of it counts."""

    margin: float
    threshold: float
    clean_margin: float
    noisy_margin: float
    sharpness: float
    offset: float
    ranking_weight: float
    energy_weight: float
    complementary_weight: float
    filtration: bool  # without it every pair is clean
    weighting: bool  # without it every weight is 1
    complementary: bool  # without it the complementary loss is 0
    exclude_used: bool  # the hard negatives of clean rows are no complementary labels


class Outcome(NamedTuple):
    """What a batch comes to: six scalars, eight statistics (b,), the gradient (b, b) of the weighted sum."""

    ranking_i2t: Tensor
    ranking_t2i: Tensor
    energy_bound_i2t: Tensor
    energy_bound_t2i: Tensor
    complementary_i2t: Tensor
    complementary_t2i: Tensor
    energy_i2t: Tensor
    energy_t2i: Tensor
    clean_i2t: Tensor
    clean_t2i: Tensor
    weight_i2t: Tensor
    weight_t2i: Tensor
    active_i2t: Tensor
    active_t2i: Tensor
    gradient: Tensor  # (0, 0) where none was asked for


class Queries(NamedTuple):
    """What the second pass has to know about each row; every tensor is (b,)."""

    positive: Tensor  # F_ii
    hard: Tensor  # F_i,phi(i)
    hard_index: Tensor  # phi(i)
    rest: Tensor  # logsumexp over the row without phi(i); in a single block alone it is right in every row
    clean: Tensor  # bool
    used: Tensor  # bool: the hard negative is no complementary label
    label_scale: Tensor  # B - 1, or 0 where no label is left
    num_alike: Tensor  # how many pairs are clean, or are not, as this one

    def of(self, rows: slice) -> Queries:
        return Queries(*(per_row[rows] for per_row in self))


class Split(NamedTuple):
    """A row's probability between the hardest negative and the others; every tensor is (k,)."""

    p_hard: Tensor  # P_i,phi(i)
    p_rest: Tensor  # u, that is 1 - P_i,phi(i) without its rounding
    log_p_hard: Tensor
    log_p_rest: Tensor


def split(hard: Tensor, rest: Tensor) -> Split:
    lead = hard - rest
    return Split(lead.sigmoid(), (-lead).sigmoid(), logsigmoid(lead), logsigmoid(-lead))


class Direction(NamedTuple):
    """What one direction comes to; every tensor is (b,) unless it says otherwise."""

    positive: Tensor
    hard: Tensor
    hard_index: Tensor
    has_negative: Tensor  # bool
    energy: Tensor
    clean: Tensor  # bool
    weight: Tensor
    complementary: Tensor  # scalar


class Ranking(NamedTuple):
    """The ranking loss of one direction, and its derivative by the two logits it reads in a row."""

    loss: Tensor  # scalar
    active: Tensor  # (b,) bool: clean and inside the hinge
    by_positive: Tensor  # (b,)
    by_hard: Tensor  # (b,)


@torch.no_grad()
def evaluate(logits: Tensor, valid: Tensor | None, plan: Plan, *, with_gradient: bool) -> Outcome:
    """Every term of the plan, unweighted, and the gradient of their weighted sum."""
    gradient = logits.new_empty(logits.shape if with_gradient else (0, 0))
    target = gradient if with_gradient else None
    blocks = RowBlocks(logits, num_buffers=4)
    excluded = None if valid is None else ~valid
    excluded_t2i, valid_t2i = (None, None) if valid is None else (~valid.T, valid.T)
    # The first direction writes the gradient, the second one adds to it.
    t2i = direction(blocks.T, excluded_t2i, count_valid(logits.T, valid_t2i), plan, target)
    i2t = direction(blocks, excluded, count_valid(logits, valid), plan, target)
    rank_i2t, rank_t2i = rank(i2t, t2i.weight, plan), rank(t2i, i2t.weight, plan)
    if with_gradient:
        add_at(gradient, i2t.hard_index, rank_i2t.by_hard)
        add_at(gradient.T, t2i.hard_index, rank_t2i.by_hard)
        gradient.diagonal().add_(rank_i2t.by_positive + rank_t2i.by_positive)
    return outcome(i2t, t2i, rank_i2t, rank_t2i, plan, gradient)


def outcome(
    i2t: Direction, t2i: Direction, rank_i2t: Ranking, rank_t2i: Ranking, plan: Plan, gradient: Tensor
) -> Outcome:
    """What both directions come to together."""
    margins = {"clean_margin": plan.clean_margin, "noisy_margin": plan.noisy_margin}
    return Outcome(
        ranking_i2t=rank_i2t.loss,
        ranking_t2i=rank_t2i.loss,
        energy_bound_i2t=energy_bound(i2t.energy, i2t.clean, **margins),
        energy_bound_t2i=energy_bound(t2i.energy, t2i.clean, **margins),
        complementary_i2t=i2t.complementary,
        complementary_t2i=t2i.complementary,
        energy_i2t=i2t.energy,
        energy_t2i=t2i.energy,
        clean_i2t=i2t.clean,
        clean_t2i=t2i.clean,
        weight_i2t=i2t.weight,
        weight_t2i=t2i.weight,
        active_i2t=rank_i2t.active,
        active_t2i=rank_t2i.active,
        gradient=gradient,
    )


def direction(
    blocks: Blocks, excluded: RowMask | None, candidates: Tensor, plan: Plan, gradient: Any
) -> Direction:
    """One direction in two passes: how a pair is treated depends on how many pairs are clean.

    Args:
        excluded: rows of a (b, b) mask, True where a candidate does not count.
        candidates: (b,) how many count.
        gradient: where the blocks deliver the gradient, or None.
    """
    surveys = [survey(blocks, rows, excluded, plan.threshold) for rows in blocks]
    positive, hard, hard_index, rest = (blocks.join(parts) for parts in zip(*surveys, strict=True))
    clean = (positive > hard) & (-torch.logaddexp(rest, hard) < plan.threshold)
    clean = clean if plan.filtration else torch.ones_like(clean)
    used = clean if plan.exclude_used else torch.zeros_like(clean)
    queries = Queries(
        positive,
        hard,
        hard_index,
        rest,
        clean,
        used=used,
        label_scale=(candidates - 1).where(candidates - 1 > used.to(candidates.dtype), 0.0),
        num_alike=clean.sum().where(clean, (~clean).sum()),
    )

    finished = [_finish(blocks, rows, excluded, queries.of(rows), plan, gradient) for rows in blocks]
    rest, rest_entropy, loss = (blocks.join(parts) for parts in zip(*finished, strict=True))
    energy = -torch.logaddexp(rest, hard)
    row = split(hard, rest)
    entropy = row.p_rest * (rest_entropy - row.log_p_rest) - row.p_hard * row.log_p_hard
    unsatisfied = (plan.margin - positive.sigmoid() + hard.sigmoid() > 0) & plan.weighting
    weight = 1 - scaled_entropy(entropy, candidates).where(unsatisfied, 0.0)
    return Direction(positive, hard, hard_index, candidates > 1, energy, clean, weight, loss.mean())


def _finish(
    blocks: Blocks,
    rows: slice,
    excluded: RowMask | None,
    queries: Queries,
    plan: Plan,
    gradient: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Logsumexp and entropy without phi, and complementary loss (k,); the gradient goes to `gradient`."""
    block, share, labels, work = blocks.buffers(rows)
    if not blocks.single:  # a single block is still in the buffers as the survey left it
        blocks.load(rows, into=block, scratch=share)
        if excluded is not None:
            block.masked_fill_(excluded[rows], low(block.dtype))
        set_at(block, queries.hard_index, low(block.dtype))
        set_pairs(block, rows, queries.positive)  # in a row without a negative, phi may be the pair itself
        torch.softmax(block, dim=1, out=share)
    rest = queries.rest if blocks.single else logsumexp(block, share)
    row = split(queries.hard, rest)
    slope = _energy_slope(-torch.logaddexp(rest, queries.hard), queries, plan)
    if plan.complementary:
        _select(torch.sigmoid(block, out=labels), work, rows, excluded, queries, plan)
    rest_entropy = -block.sub_(rest[:, None]).mul_(share).sum(dim=1)

    if not plan.complementary:
        if gradient is not None:
            share.mul_((-slope * row.p_rest)[:, None])
            add_at(share, queries.hard_index, -slope * row.p_hard)
            blocks.deliver(gradient, rows, share, scratch=work)
        return rest, rest_entropy, torch.zeros_like(rest_entropy)

    negative_p = torch.mul(share, -row.p_rest[:, None], out=work)
    set_pairs(negative_p, rows, 0.0)
    label_hard = take_at(labels, queries.hard_index)
    log_rest = torch.log1p(negative_p, out=block).mul_(labels).sum(dim=1)
    loss = -queries.label_scale * (log_rest + label_hard * row.log_p_rest)
    if gradient is not None:
        push = labels.mul_(share).div_(negative_p.add_(1))  # Q share / (1 - P), that is G / (c u)
        pushed = row.p_rest * push.sum(dim=1)
        scale = queries.label_scale * (plan.complementary_weight / len(blocks))
        pull = row.p_rest * (scale * pushed + slope) + scale * label_hard * row.p_hard
        push.mul_((scale * row.p_rest)[:, None]).addcmul_(share, pull[:, None], value=-1)
        by_hard = row.p_hard * (scale * (label_hard - pushed) - slope)
        add_at(push, queries.hard_index, by_hard)
        blocks.deliver(gradient, rows, push, scratch=work)
    return rest, rest_entropy, loss


def _select(
    scores: Tensor, scratch: Tensor, rows: slice, excluded: RowMask | None, queries: Queries, plan: Plan
) -> None:
    """Turn a block of sigmoid scores into Q, in place."""
    nothing = low(scores.dtype)
    set_at(scores, queries.hard_index, queries.hard.sigmoid())
    if plan.sharpness != 1:
        scores.mul_(plan.sharpness)
    if excluded is not None:
        scores.masked_fill_(excluded[rows], nothing)
    # The pair stands for the 1 in the denominator. A softmax does not see that all exponents are shifted.
    set_pairs(scores, rows, plan.sharpness * plan.offset)
    likelihood = torch.softmax(scores, dim=1, out=scratch)
    if excluded is not None:
        likelihood.masked_fill_(excluded[rows], nothing)
    hard_likelihood = take_at(likelihood, queries.hard_index)
    set_at(likelihood, queries.hard_index, hard_likelihood.masked_fill(queries.used, nothing))
    set_pairs(likelihood, rows, nothing)
    torch.softmax(likelihood, dim=1, out=scores)


def _energy_slope(energy: Tensor, queries: Queries, plan: Plan) -> Tensor:
    """Derivative (k,) of the weighted energy bound by each energy."""
    excess = (energy - plan.clean_margin).relu().where(queries.clean, -(plan.noisy_margin - energy).relu())
    return 2 * plan.energy_weight * excess / queries.num_alike


def rank(queries: Direction, weight: Tensor, plan: Plan) -> Ranking:
    """The hinge of one direction with the weight of the other."""
    score, hard_score = queries.positive.sigmoid(), queries.hard.sigmoid()
    hinge = (plan.margin - weight * score + hard_score).relu().where(queries.has_negative, 0.0)
    active = queries.clean & (hinge > 0)
    step = plan.ranking_weight / queries.clean.sum().clamp_min(1).to(score.dtype)
    return Ranking(
        loss=mean_over(hinge, queries.clean),
        active=active,
        by_positive=(-step * weight * score * (1 - score)).where(active, 0.0),
        by_hard=(step * hard_score * (1 - hard_score)).where(active, 0.0),
    )
