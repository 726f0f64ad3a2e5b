"""All terms of the objective, both directions, with their gradient, in a few passes over the logits.

The public functions are the formulas; these are the same numbers, faster, and the tests hold them to each other. Two
ideas make it fast. The derivative of every term is known in closed form, so no graph over (b, b) matrices is kept. And
the sums of a row leave out its hardest negative phi, which is added back by itself:

    rest = logsumexp over j != phi,   share = softmax over j != phi,   u = 1 - P_phi = sigmoid(rest - F_phi)
    P_j = u share_j,   log(1 - P_phi) = logsigmoid(rest - F_phi),   P_j <= 1/2 for every other negative

so that everything stays exact when the hardest negative takes all of the probability. With c_j = (B - 1) Q_j and
G_j = c_j P_j / (1 - P_j), the complementary loss of a row has the derivative

    j != phi:  G_j - share_j (u sum_k G_k + c_phi P_phi)         j = phi:  P_phi (c_phi - sum_k G_k)

where the sums leave phi out; that of the energy is -P.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from sremkit.objectives.blocks import RowBlocks, add_at, first_max, set_at, set_pairs, take_at
from sremkit.objectives.candidates import count_valid, low
from sremkit.objectives.energy import energy_bound, mean_over
from sremkit.objectives.entropy import scaled_entropy


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


class Rows(NamedTuple):
    """What the second pass has to know about each query; every tensor is (b,)."""

    positive: Tensor  # F_ii
    hard: Tensor  # F_i,phi(i)
    hard_index: Tensor  # phi(i)
    rest: Tensor  # logsumexp over the row without phi(i)
    used: Tensor  # bool: the hard negative is no complementary label
    label_scale: Tensor  # B - 1, or 0 where no label is left
    energy_slope: Tensor  # derivative of the total by the energy

    def of(self, rows: slice) -> Rows:
        return Rows(*(per_row[rows] for per_row in self))


class Direction(NamedTuple):
    """What one direction comes to; every tensor is (b,) unless it says otherwise."""

    positive: Tensor
    hard: Tensor
    hard_index: Tensor
    has_negative: Tensor  # bool
    energy: Tensor
    clean: Tensor  # bool
    weight: Tensor
    energy_bound: Tensor  # scalar
    complementary: Tensor  # scalar


class Ranking(NamedTuple):
    """The ranking loss of one direction, and its derivative by the two logits it reads in a row."""

    loss: Tensor  # scalar
    active: Tensor  # (b,) bool: clean and inside the hinge
    by_positive: Tensor  # (b,)
    by_hard: Tensor  # (b,)


@torch.no_grad()
def evaluate(
    logits: Tensor, valid: Tensor | None, plan: Plan, *, gradient: Tensor | None
) -> tuple[Direction, Direction, Ranking, Ranking]:
    """Both directions and their swapped rankings; the gradient of the total overwrites `gradient`, if given."""
    i2t = _direction(logits, valid, plan, gradient, transposed=False)
    t2i = _direction(logits, valid, plan, gradient, transposed=True)
    rank_i2t = _ranking(i2t, t2i.weight, plan)
    rank_t2i = _ranking(t2i, i2t.weight, plan)
    if gradient is not None:
        add_at(gradient, i2t.hard_index, rank_i2t.by_hard)
        add_at(gradient.T, t2i.hard_index, rank_t2i.by_hard)
        gradient.diagonal().add_(rank_i2t.by_positive + rank_t2i.by_positive)
    return i2t, t2i, rank_i2t, rank_t2i


def _direction(
    logits: Tensor, valid: Tensor | None, plan: Plan, gradient: Tensor | None, *, transposed: bool
) -> Direction:
    if valid is not None and transposed:
        valid = valid.T
    excluded = None if valid is None else ~valid
    blocks = RowBlocks(logits, num_buffers=4, transposed=transposed)

    surveys = [_survey(blocks, rows, excluded) for rows in blocks]
    positive, hard, hard_index, rest = (torch.cat(parts) for parts in zip(*surveys, strict=True))
    candidates = count_valid(logits, valid)
    energy = -torch.logaddexp(rest, hard)
    clean = (positive > hard) & (energy < plan.threshold)
    clean = clean if plan.filtration else torch.ones_like(clean)
    used = clean if plan.exclude_used else torch.zeros_like(clean)
    label_scale = (candidates - 1).where(candidates - 1 > used.to(candidates.dtype), 0.0)
    row = Rows(positive, hard, hard_index, rest, used, label_scale, _energy_slope(energy, clean, plan))

    finished = [_finish(blocks, rows, excluded, row.of(rows), plan, gradient) for rows in blocks]
    entropy, loss = (torch.cat(parts) for parts in zip(*finished, strict=True))
    has_negative = candidates > 1
    unsatisfied = (plan.margin - positive.sigmoid() + hard.sigmoid() > 0) & has_negative & plan.weighting
    return Direction(
        positive=positive,
        hard=hard,
        hard_index=hard_index,
        has_negative=has_negative,
        energy=energy,
        clean=clean,
        weight=1 - scaled_entropy(entropy, candidates).where(unsatisfied, 0.0),
        energy_bound=energy_bound(
            energy, clean, clean_margin=plan.clean_margin, noisy_margin=plan.noisy_margin
        ),
        complementary=loss.mean(),
    )


def _survey(blocks: RowBlocks, rows: slice, excluded: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """F_ii, the hardest negative and its place, and the logsumexp of the others, for a block of rows."""
    block, share, *_ = blocks.buffers(rows)
    nothing = low(block.dtype)
    blocks.load(rows, into=block, scratch=share)
    if excluded is not None:
        block.masked_fill_(excluded[rows], nothing)
    positive = block.diagonal(rows.start).clone()
    set_pairs(block, rows, nothing)
    hard, hard_index = first_max(block)
    set_at(block, hard_index, nothing)
    set_pairs(block, rows, positive)
    torch.softmax(block, dim=1, out=share)
    rest = block.amax(dim=1) - share.amax(dim=1).log()  # as logsumexp, of which softmax is the faster half
    return positive, hard, hard_index, rest


def _finish(
    blocks: RowBlocks, rows: slice, excluded: Tensor | None, row: Rows, plan: Plan, gradient: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Entropy and complementary loss (k,) of a block of rows; its gradient goes to `gradient`."""
    block, share, labels, work = blocks.buffers(rows)
    nothing = low(block.dtype)
    blocks.load(rows, into=block, scratch=share)
    if excluded is not None:
        block.masked_fill_(excluded[rows], nothing)
    set_at(block, row.hard_index, nothing)
    set_pairs(block, rows, row.positive)  # in a row without a negative phi may be the pair itself
    torch.softmax(block, dim=1, out=share)
    if plan.complementary:
        torch.sigmoid(block, out=labels)
        _select(labels, work, rows, excluded, row, plan)

    p_hard, p_rest = (row.hard - row.rest).sigmoid(), (row.rest - row.hard).sigmoid()
    log_p_hard, log_p_rest = logsigmoid(row.hard - row.rest), logsigmoid(row.rest - row.hard)
    rest_entropy = -block.sub_(row.rest[:, None]).mul_(share).sum(dim=1)
    entropy = p_rest * (rest_entropy - log_p_rest) - p_hard * log_p_hard

    if not plan.complementary:
        if gradient is not None:
            share.mul_((-row.energy_slope * p_rest)[:, None])
            add_at(share, row.hard_index, -row.energy_slope * p_hard)
            _deliver(blocks, gradient, rows, share, scratch=block)
        return entropy, torch.zeros_like(entropy)

    torch.mul(share, -p_rest[:, None], out=work)  # -P
    set_pairs(work, rows, 0.0)
    label_hard = take_at(labels, row.hard_index)
    log_rest = torch.log1p(work, out=block).mul_(labels).sum(dim=1)
    loss = -row.label_scale * (log_rest + label_hard * log_p_rest)
    if gradient is not None:
        push = labels.mul_(share).div_(work.add_(1))  # Q share / (1 - P), that is G / (u c)
        pushed = p_rest * push.sum(dim=1)
        scale = row.label_scale * (plan.complementary_weight / len(gradient))
        pull = scale * (p_rest * pushed + label_hard * p_hard) + row.energy_slope * p_rest
        push.mul_((scale * p_rest)[:, None]).addcmul_(share, pull[:, None], value=-1)
        add_at(push, row.hard_index, p_hard * (scale * (label_hard - pushed) - row.energy_slope))
        _deliver(blocks, gradient, rows, push, scratch=block)
    return entropy, loss


def _select(
    scores: Tensor, scratch: Tensor, rows: slice, excluded: Tensor | None, row: Rows, plan: Plan
) -> None:
    """Turn a block of sigmoid scores into Q, in place."""
    nothing = low(scores.dtype)
    set_at(scores, row.hard_index, row.hard.sigmoid())
    if plan.sharpness != 1:
        scores.mul_(plan.sharpness)
    if excluded is not None:
        scores.masked_fill_(excluded[rows], nothing)
    # The pair stands for the 1 in the denominator. All exponents are shifted alike, which a softmax does not see.
    set_pairs(scores, rows, plan.sharpness * plan.offset)
    likelihood = torch.softmax(scores, dim=1, out=scratch)
    if excluded is not None:
        likelihood.masked_fill_(excluded[rows], nothing)
    set_at(likelihood, row.hard_index, take_at(likelihood, row.hard_index).masked_fill(row.used, nothing))
    set_pairs(likelihood, rows, nothing)
    torch.softmax(likelihood, dim=1, out=scores)


def _deliver(blocks: RowBlocks, gradient: Tensor, rows: slice, values: Tensor, scratch: Tensor) -> None:
    """The first direction writes the gradient, the second adds to it."""
    if blocks.transposed:
        blocks.add(gradient, rows, values, scratch)
    else:
        blocks.store(gradient, rows, values)


def _energy_slope(energy: Tensor, clean: Tensor, plan: Plan) -> Tensor:
    """Derivative (b,) of the weighted energy bound by each energy."""
    by_clean = (energy - plan.clean_margin).relu() / clean.sum().clamp_min(1)
    by_noisy = (plan.noisy_margin - energy).relu() / (~clean).sum().clamp_min(1)
    return 2 * plan.energy_weight * by_clean.where(clean, -by_noisy)


def _ranking(queries: Direction, weight: Tensor, plan: Plan) -> Ranking:
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
