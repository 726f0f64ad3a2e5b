"""eq:total and eq:warmup: SREM and srem_reference against the oracle and the public functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from logit_cases import (
    SREM_SETTINGS,
    WORKED,
    assert_exact,
    different,
    mixed_logits,
    random_logits,
    repeated_ids,
)
from oracles import srem as oracle
from sremkit import SREM, Terms
from sremkit.objectives import (
    Loss,
    PairReport,
    complementary,
    energy,
    energy_bound,
    normalized_entropy,
    select_clean,
    sensitivity,
    srem_reference,
    weighted_ranking,
)

IMPLEMENTATIONS = {
    "fused": lambda F, criterion, **options: criterion(F, **options),
    "reference": lambda F, criterion, **options: srem_reference(F, criterion, **options),
}
BOTH = pytest.mark.parametrize("run", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
MASKED = pytest.mark.parametrize("masked", [False, True], ids=["all", "repeated images"])


@BOTH
@MASKED
@pytest.mark.parametrize("settings", SREM_SETTINGS.values(), ids=SREM_SETTINGS.keys())
def test_total_and_parts_equal_the_oracle(settings: dict, masked: bool, run: Callable[..., Terms]) -> None:
    F, ids = mixed_logits(), repeated_ids(12) if masked else None
    out = run(F, SREM(**settings), image_ids=ids)
    expected = oracle.total(F.tolist(), valid=different(ids).tolist() if masked else None, **settings)
    assert_exact(out.total, expected.pop("total"))
    assert out.parts.keys() == expected.keys()
    for name, value in expected.items():
        assert_exact(out.parts[name], value)


@BOTH
@MASKED
@pytest.mark.parametrize("reading", ["normalized", "printed"])
def test_the_warm_up_equals_the_oracle(reading: str, masked: bool, run: Callable[..., Terms]) -> None:
    F, ids = mixed_logits(), repeated_ids(12) if masked else None
    valid = different(ids).tolist() if masked else None
    out = run(F, SREM(reading=reading), warmup=True, image_ids=ids)
    expected = oracle.total(F.tolist(), warmup=True, reading=reading, valid=valid)
    assert_exact(out.total, expected["complementary_i2t"] + expected["complementary_t2i"])


@BOTH
@pytest.mark.parametrize("settings", [{}, {"filtration": False}, {"reading": "printed"}], ids=str)
@pytest.mark.parametrize("lift", [-6.0, 6.0])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_small_batches_equal_the_oracle(size: int, lift: float, settings: dict, run: Callable[..., Terms]) -> None:
    """Of two pairs, a clean one has no complementary label; a single pair has no negative."""
    F, ids = random_logits(size, lift=lift), torch.tensor([0, 1, 0])[:size]
    for mask, options in ((None, {}), (different(ids).tolist(), {"image_ids": ids})):
        total = run(F, SREM(**settings), **options).total
        assert_exact(total, oracle.total(F.tolist(), valid=mask, **settings)["total"])


def test_the_total_of_the_worked_logits() -> None:
    """With threshold 0 the clean rows are 0 and 2; the clean column is 0: 5 leads 2 and 1, 1 trails 2, 3 trails 5."""
    out = SREM(weighting=False, rectification=False)(WORKED)
    assert out.clean_i2t.tolist() == [True, False, True]
    assert out.clean_t2i.tolist() == [True, False, False]
    # Rows: (0.2 - 5/6 + 2/3) = 1/30 and (0.2 - 3/4 + 2/3) = 7/60, mean 3/40. Column 0: 0.2 - 5/6 + 2/3 = 1/30.
    assert_exact(out.parts["ranking_i2t"], 3 / 40)
    assert_exact(out.parts["ranking_t2i"], 1 / 30)
    weights = {"ranking": 0.5, "energy": 0.01, "complementary": 1.0}
    whole = sum(weights[name.split("_")[0]] * part for name, part in out.parts.items())
    torch.testing.assert_close(out.total, whole, rtol=1e-12, atol=0)


TWINS = {
    "unswapped weight": {"swap": False},
    "half missing": {"half": 1.0},
    "one direction": {"ways": (0,)},
}


@pytest.mark.parametrize("change", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_a_wrong_composition(change: dict) -> None:
    F = mixed_logits()
    clean = [select_clean(x, 0.0) for x in (F, F.T)]
    weight = [sensitivity(x, margin=0.2) for x in (F, F.T)]
    total = torch.zeros_like(F[0, 0])
    for way in change.get("ways", (0, 1)):
        x = (F, F.T)[way]
        w = weight[1 - way] if change.get("swap", True) else weight[way]
        total = total + change.get("half", 0.5) * weighted_ranking(x, w, clean[way], margin=0.2)
        total = total + 0.01 * energy_bound(energy(x), clean[way])
        total = total + complementary(x, clean[way], sharpness=1.0, offset=0.5)
    with pytest.raises(AssertionError):
        assert_exact(total, oracle.total(F.tolist())["total"])


def test_statistics_are_those_of_the_public_functions_and_detached() -> None:
    F, ids = mixed_logits().requires_grad_(), repeated_ids(12)
    valid = different(ids)
    for warmup in (False, True):
        out = SREM(threshold=-3.0)(F, image_ids=ids, warmup=warmup)
        assert isinstance(out, Terms)
        torch.testing.assert_close(out.energy_i2t, energy(F, valid=valid).detach(), rtol=1e-10, atol=0)
        torch.testing.assert_close(out.energy_t2i, energy(F.T, valid=valid).detach(), rtol=1e-10, atol=0)
        assert torch.equal(out.clean_i2t, select_clean(F, -3.0, valid=valid))
        assert torch.equal(out.clean_t2i, select_clean(F.T, -3.0, valid=valid))
        torch.testing.assert_close(out.weight_i2t, sensitivity(F, margin=0.2, valid=valid), rtol=1e-10, atol=0)
        torch.testing.assert_close(out.weight_t2i, sensitivity(F.T, margin=0.2, valid=valid), rtol=1e-10, atol=0)
        others = [value for name, value in vars(out).items() if name not in ("total", "parts", "report")]
        assert not any(x.requires_grad for x in [*others, *out.parts.values()])
        assert out.total.requires_grad


def test_the_report_holds_the_same_statistics_by_direction() -> None:
    out = SREM()(mixed_logits())
    assert out.report is not None
    assert out.report.clean == (out.clean_i2t, out.clean_t2i)
    assert out.report.energy == (out.energy_i2t, out.energy_t2i)
    assert out.report.active == (out.active_i2t, out.active_t2i)
    assert out.report.weight == (out.weight_i2t, out.weight_t2i)
    assert out.report.applied_weight() == (out.weight_t2i, out.weight_i2t)
    assert Loss(out.total, {}).report is None
    once = PairReport(weight=out.weight_i2t, swapped=True)
    assert once.applied_weight() is out.weight_i2t


def test_active_pairs_are_the_clean_ones_inside_the_hinge_of_the_swapped_weight() -> None:
    F = mixed_logits(40)
    out = SREM()(F)
    for clean, weight, active, x in (
        (out.clean_i2t, out.weight_t2i, out.active_i2t, F),
        (out.clean_t2i, out.weight_i2t, out.active_t2i, F.T),
    ):
        hard = (x - 1e9 * torch.eye(40)).amax(1).sigmoid()
        inside = 0.2 - weight * x.diagonal().sigmoid() + hard > 0
        assert torch.equal(active, clean & inside)
        assert active.any()
        assert (clean & ~active).any()
    assert not SREM()(F, warmup=True).active_i2t.any()


def test_the_warm_up_excludes_no_hard_negative() -> None:
    F = mixed_logits()
    assert select_clean(F, 0.0).any()
    no_pair = torch.zeros(12, dtype=torch.bool)
    expected = sum(complementary(x, no_pair, sharpness=1.0, offset=0.5) for x in (F, F.T))
    torch.testing.assert_close(SREM()(F, warmup=True).total, expected, rtol=1e-10, atol=0)


def test_a_warm_up_without_the_complementary_loss_raises() -> None:
    with pytest.raises(ValueError, match="warm-up is the complementary loss alone"):
        SREM(complementary=False)(mixed_logits(), warmup=True)


def test_the_ablation_switches_disable_their_terms() -> None:
    F = mixed_logits()
    plain = SREM()(F)
    assert not plain.clean_i2t.all()
    assert (plain.weight_i2t < 1).any()
    unfiltered = SREM(filtration=False)(F)
    assert unfiltered.clean_i2t.all()
    assert unfiltered.clean_t2i.all()
    assert unfiltered.parts["energy_i2t"] == unfiltered.parts["energy_t2i"] == 0
    assert (SREM(weighting=False)(F).weight_t2i == 1).all()
    assert SREM(complementary=False)(F).parts["complementary_i2t"] == 0
    uniform, soft = SREM(rectification=False, sharpness=9.0)(F), SREM(sharpness=0.0)(F)
    torch.testing.assert_close(uniform.total, soft.total, rtol=1e-12, atol=0)


def test_repeated_images_have_no_influence_and_get_no_gradient() -> None:
    ids = repeated_ids(12)
    same = ~different(ids)
    for reading in ("normalized", "printed"):
        F = mixed_logits().requires_grad_()
        out = SREM(reading=reading)(F, image_ids=ids)
        out.total.backward()
        assert same.sum() == 10
        assert (F.grad[same] == 0).all()
        changed = mixed_logits()
        changed[same] += 7
        torch.testing.assert_close(SREM(reading=reading)(changed, image_ids=ids).total, out.total.detach())


def test_image_ids_that_are_all_different_change_nothing() -> None:
    F = mixed_logits()
    one, two = SREM()(F), SREM()(F, image_ids=torch.arange(100, 112))
    torch.testing.assert_close(one.total, two.total, rtol=1e-12, atol=0)
    assert torch.equal(one.clean_i2t, two.clean_i2t)


def test_transposed_logits_swap_the_directions() -> None:
    F = mixed_logits()
    one, two = SREM()(F), SREM()(F.T)
    torch.testing.assert_close(one.total, two.total, rtol=1e-10, atol=0)
    torch.testing.assert_close(one.parts["ranking_i2t"], two.parts["ranking_t2i"], rtol=1e-10, atol=0)
    torch.testing.assert_close(one.weight_t2i, two.weight_i2t, rtol=1e-10, atol=0)


def test_the_order_of_the_pairs_does_not_matter() -> None:
    F, order = mixed_logits(), torch.randperm(12, generator=torch.Generator().manual_seed(0))
    one, two = SREM()(F), SREM()(F[order][:, order])
    torch.testing.assert_close(one.total, two.total, rtol=1e-10, atol=0)
    torch.testing.assert_close(one.weight_i2t[order], two.weight_i2t, rtol=1e-10, atol=0)


def test_the_module_has_no_parameters_and_names_its_settings() -> None:
    criterion = SREM(margin=0.3)
    assert list(criterion.parameters()) == []
    assert criterion.state_dict() == {}
    assert "margin=0.3, threshold=0.0" in repr(criterion)
    defaults = {"margin": 0.2, "threshold": 0.0, "clean_margin": -4.0, "noisy_margin": 0.0, "sharpness": 1.0,
                "offset": 0.5, "energy_weight": 0.01, "complementary_weight": 1.0, "reading": "normalized",
                "check_finite": True, "filtration": True, "weighting": True, "complementary": True,
                "rectification": True}  # fmt: skip
    assert {name: getattr(SREM(), name) for name in defaults} == defaults


def test_invalid_settings_raise() -> None:
    with pytest.raises(ValueError, match="reading must be one of normalized, printed; got 'as written'"):
        SREM(reading="as written")
    with pytest.raises(ValueError, match="energy_weight must be 0 or more, got -1"):
        SREM(energy_weight=-1)


def test_weights_lie_in_the_unit_interval_by_their_entropy() -> None:
    F = mixed_logits(40).float()
    out = SREM(margin=5.0)(F)  # no pair satisfies this margin, so every weight is 1 - entropy
    torch.testing.assert_close(out.weight_i2t, 1 - normalized_entropy(F))
