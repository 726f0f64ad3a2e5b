"""eq:warmup-power and eq:level: the warm-up by generalized cross-entropy, and the level that it leaves free."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from logit_cases import WORKED, assert_exact, different, mixed_logits, repeated_ids
from oracles import contrastive, filtration
from oracles import srem as oracle
from sremkit import SREM
from sremkit.objectives import Terms, srem_reference
from sremkit.objectives.filtration import energy, logit_level
from sremkit.objectives.srem import LEVEL_STEPS

IMPLEMENTATIONS = {
    "fused": lambda F, criterion, **options: criterion(F, **options),
    "reference": lambda F, criterion, **options: srem_reference(F, criterion, **options),
}
BOTH = pytest.mark.parametrize("run", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())


def transposed(rows: list[list[float]]) -> list[list[float]]:
    return [list(column) for column in zip(*rows, strict=True)]


@BOTH
@pytest.mark.parametrize("power", [0.3, 0.7, 1.0])
def test_the_warm_up_equals_the_oracle(power: float, run: Callable[..., Terms]) -> None:
    F = mixed_logits().tolist()
    both = contrastive.generalized(F, power) + contrastive.generalized(transposed(F), power)
    out = run(torch.tensor(F, dtype=torch.float64), SREM(warmup_power=power).eval(), warmup=True)
    assert_exact(out.total, sum(both) / len(F))


def test_the_warm_up_of_the_worked_logits() -> None:
    """With power 1 a pair costs 1 - P_ii: rows 3/8, 7/8, 1/2, columns 3/8, 4/5, 2/3; the sum divided by 3."""
    out = SREM(warmup_power=1.0)(WORKED, warmup=True)
    assert_exact(out.total, (3 / 8 + 7 / 8 + 1 / 2 + 3 / 8 + 4 / 5 + 2 / 3) / 3)


@pytest.mark.parametrize("masked", [False, True])
def test_the_level_equals_the_oracle(masked: bool) -> None:
    F, ids = mixed_logits(), repeated_ids(12)
    valid = different(ids) if masked else None
    assert_exact(logit_level(F, valid=valid), filtration.level(F.tolist(), valid.tolist() if masked else None))


def test_at_its_level_a_query_without_its_match_has_energy_0_on_average() -> None:
    F = mixed_logits()
    negatives = F.masked_fill(torch.eye(12, dtype=torch.bool), -torch.inf)
    at_level = negatives - logit_level(F)
    energies = torch.cat([energy(at_level), energy(at_level.T)])
    assert energies.mean().item() == pytest.approx(0.0, abs=1e-12)


@BOTH
def test_after_the_warm_up_the_objective_is_that_of_the_logits_at_their_level(run: Callable[..., Terms]) -> None:
    F, criterion = mixed_logits() + 5.0, SREM(warmup_power=0.7, check_finite=False)
    criterion(F, warmup=True)  # the first batch sets the level
    out = run(F, criterion)
    shifted = (F - criterion.level).tolist()
    assert_exact(out.total, oracle.total(shifted)["total"])
    assert abs(oracle.total(F.tolist())["total"] - out.total.item()) > 1e-3  # without the level it is another one


def test_a_shift_of_all_logits_changes_nothing_once_the_level_is_measured() -> None:
    totals = []
    for shift in (0.0, -7.0, 30.0):
        criterion = SREM(warmup_power=0.7, check_finite=False)
        warmup = criterion(mixed_logits() + shift, warmup=True).total
        totals.append((warmup.item(), criterion(mixed_logits() + shift).total.item()))
    for total in totals[1:]:
        assert total == pytest.approx(totals[0], rel=1e-5)  # the level is float32


def test_the_level_is_averaged_over_the_last_batches() -> None:
    criterion = SREM(warmup_power=0.7)
    for shift in (0.0, 3.0, 6.0):
        criterion(mixed_logits() + shift, warmup=True)
    expected = logit_level(mixed_logits()).item() + 3.0  # the mean of three
    assert criterion.level.item() == pytest.approx(expected, rel=1e-5)
    for _ in range(8 * LEVEL_STEPS):
        criterion(mixed_logits() - 20.0, warmup=True)
    assert criterion.level.item() == pytest.approx(expected - 23.0, abs=0.05)  # a moving average forgets


def test_only_training_steps_of_the_warm_up_change_the_level() -> None:
    criterion = SREM(warmup_power=0.7, check_finite=False)  # so short a warm-up would be warned of
    criterion(mixed_logits(), warmup=True)
    before = criterion.level.item()
    criterion(mixed_logits() + 9.0)
    criterion.eval()(mixed_logits() + 9.0, warmup=True)
    assert criterion.level.item() == before


def test_the_level_is_part_of_the_state_where_there_is_one() -> None:
    criterion, other = SREM(warmup_power=0.7), SREM(warmup_power=0.7)
    criterion(mixed_logits(), warmup=True)
    other.load_state_dict(criterion.state_dict())
    assert other.level == criterion.level
    assert SREM().state_dict() == {}


def test_gradients_of_the_warm_up_are_those_of_finite_differences() -> None:
    criterion = SREM(warmup_power=0.7).eval()
    F = mixed_logits(5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: criterion(x, warmup=True).total, (F,))


def mean_of_one_direction(F: list[list[float]], power: float) -> float:
    return sum(contrastive.generalized(F, power)) / len(F)


def without_division_by_the_power(F: list[list[float]], power: float) -> float:
    both = contrastive.generalized(F, power) + contrastive.generalized(transposed(F), power)
    return power * sum(both) / len(F)


@pytest.mark.parametrize("wrong", [mean_of_one_direction, without_division_by_the_power])
def test_wrong_warm_ups_are_rejected(wrong: Callable[[list[list[float]], float], float]) -> None:
    out = SREM(warmup_power=0.7)(mixed_logits(), warmup=True)
    with pytest.raises(AssertionError):
        assert_exact(out.total, wrong(mixed_logits().tolist(), 0.7))


def test_a_power_outside_of_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        SREM(warmup_power=1.5)
