"""eq:total and eq:warmup: the whole objective against its oracle and against the public functions."""

from __future__ import annotations

import pytest
import torch

from logit_cases import WORKED, assert_exact, different, random_logits, repeated_ids
from oracles import total as oracle
from sremkit import SREM, Terms
from sremkit.objectives import (
    complementary,
    energy,
    energy_bound,
    normalized_entropy,
    select_clean,
    sensitivity,
    weighted_ranking,
)

UNUSUAL = {
    "margin": 0.3,
    "threshold": -2.4,
    "clean_margin": -5.0,
    "noisy_margin": -2.0,
    "sharpness": 2.5,
    "offset": 0.3,
    "energy_weight": 0.2,
    "complementary_weight": 0.7,
}
SETTINGS = {
    "defaults": {},
    "unusual": UNUSUAL,
    "no filtration": UNUSUAL | {"filtration": False},
    "no weighting": UNUSUAL | {"weighting": False},
    "no complementary": UNUSUAL | {"complementary": False},
    "no rectification": UNUSUAL | {"rectification": False},
    "printed": UNUSUAL | {"reading": "printed"},
    "printed, no rectification": {"reading": "printed", "rectification": False},
    "bare": {"filtration": False, "weighting": False, "complementary": False},
}


def case(size: int = 12) -> torch.Tensor:
    """Logits of which some pairs are clean in a direction and some are not."""
    return random_logits(size, seed=5, scale=1.0, lift=1.8) - 1


def composed(F, *, warmup=False, valid=None, **settings) -> torch.Tensor:
    """The total, put together from the public functions, with autograd's gradient."""
    s = SREM.__init__.__kwdefaults__ | settings
    views = [(F, valid), (F.T, None if valid is None else valid.T)]
    clean = [
        select_clean(x, s["threshold"], valid=v) if s["filtration"] else torch.ones(len(F), dtype=torch.bool)
        for x, v in views
    ]
    weight = [
        sensitivity(x, margin=s["margin"], valid=v) if s["weighting"] else torch.ones_like(F[0])
        for x, v in views
    ]
    total = torch.zeros_like(F[0, 0])
    for way, (x, v) in enumerate(views):
        used = clean[way] & (not warmup)
        if s["complementary"]:
            sharpness = s["sharpness"] if s["rectification"] else 0.0
            options = {"offset": s["offset"], "reading": s["reading"], "valid": v}
            term = complementary(x, used, sharpness=sharpness, **options)
            total = total + term * (1.0 if warmup else s["complementary_weight"])
        if not warmup:
            swapped = weight[1 - way]
            total = total + 0.5 * weighted_ranking(x, swapped, clean[way], margin=s["margin"], valid=v)
        if s["filtration"] and not warmup:
            margins = {"clean_margin": s["clean_margin"], "noisy_margin": s["noisy_margin"]}
            total = total + s["energy_weight"] * energy_bound(energy(x, valid=v), clean[way], **margins)
    return total


@pytest.mark.parametrize("masked", [False, True], ids=["all", "repeated images"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_total_and_its_parts_equal_the_oracle(settings: dict, masked: bool) -> None:
    F, ids = case(), repeated_ids(12) if masked else None
    out = SREM(**settings)(F, image_ids=ids)
    expected = oracle.total(F.tolist(), valid=different(ids).tolist() if masked else None, **settings)
    assert_exact(out.total, expected.pop("total"))
    assert out.parts.keys() == expected.keys()
    for name, value in expected.items():
        assert_exact(out.parts[name], value)


@pytest.mark.parametrize("masked", [False, True], ids=["all", "repeated images"])
@pytest.mark.parametrize("reading", ["normalized", "printed"])
def test_the_warm_up_equals_the_oracle(reading: str, masked: bool) -> None:
    F, ids = case(), repeated_ids(12) if masked else None
    valid = different(ids).tolist() if masked else None
    out = SREM(reading=reading)(F, warmup=True, image_ids=ids)
    expected = oracle.total(F.tolist(), warmup=True, reading=reading, valid=valid)
    assert_exact(out.total, expected["complementary_i2t"] + expected["complementary_t2i"])


CALLS = [(name, False) for name in SETTINGS]
CALLS += [(name, True) for name in SETTINGS if SETTINGS[name].get("complementary", True)]


@pytest.mark.parametrize("masked", [False, True], ids=["all", "repeated images"])
@pytest.mark.parametrize(("name", "warmup"), CALLS)
def test_value_and_gradient_equal_those_of_the_public_functions(
    name: str, warmup: bool, masked: bool
) -> None:
    settings = SETTINGS[name]
    ids = repeated_ids(12) if masked else None
    one, two = case().requires_grad_(), case().requires_grad_()
    total = SREM(**settings)(one, warmup=warmup, image_ids=ids).total
    reference = composed(two, warmup=warmup, valid=different(ids) if masked else None, **settings)
    total.backward()
    reference.backward()
    torch.testing.assert_close(total, reference, rtol=1e-10, atol=0)
    torch.testing.assert_close(one.grad, two.grad, rtol=1e-10, atol=1e-13)
    assert one.grad.abs().max() > 1e-3


@pytest.mark.parametrize("settings", [{}, {"filtration": False}, {"reading": "printed"}], ids=str)
@pytest.mark.parametrize("lift", [-6.0, 6.0])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_small_batches_equal_the_oracle_and_the_public_functions(
    size: int, lift: float, settings: dict
) -> None:
    """A clean pair among two has no complementary label left, and one alone has no negative at all."""
    ids = torch.tensor([0, 1, 0])[:size]
    for mask, options in ((None, {}), (different(ids), {"image_ids": ids})):
        F = random_logits(size, lift=lift)
        one, two = F.clone().requires_grad_(), F.clone().requires_grad_()
        total, reference = SREM(**settings)(one, **options).total, composed(two, valid=mask, **settings)
        total.backward()
        reference.backward()
        assert_exact(
            total,
            oracle.total(F.tolist(), valid=None if mask is None else mask.tolist(), **settings)["total"],
        )
        torch.testing.assert_close(total, reference, rtol=1e-10, atol=0)
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-10, atol=1e-13)


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


@pytest.mark.parametrize("mistake", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_a_wrong_composition(mistake: dict) -> None:
    F = case()
    clean = [select_clean(x, 0.0) for x in (F, F.T)]
    weight = [sensitivity(x, margin=0.2) for x in (F, F.T)]
    total = torch.zeros_like(F[0, 0])
    for way in mistake.get("ways", (0, 1)):
        x = (F, F.T)[way]
        w = weight[1 - way] if mistake.get("swap", True) else weight[way]
        total = total + mistake.get("half", 0.5) * weighted_ranking(x, w, clean[way], margin=0.2)
        total = total + 0.01 * energy_bound(energy(x), clean[way])
        total = total + complementary(x, clean[way], sharpness=1.0, offset=0.5)
    with pytest.raises(AssertionError):
        assert_exact(total, oracle.total(F.tolist())["total"])


def test_statistics_are_those_of_the_public_functions_and_detached() -> None:
    F, ids = case().requires_grad_(), repeated_ids(12)
    valid = different(ids)
    for warmup in (False, True):
        out = SREM(threshold=-3.0)(F, image_ids=ids, warmup=warmup)
        assert isinstance(out, Terms)
        torch.testing.assert_close(out.energy_i2t, energy(F, valid=valid).detach(), rtol=1e-10, atol=0)
        torch.testing.assert_close(out.energy_t2i, energy(F.T, valid=valid).detach(), rtol=1e-10, atol=0)
        assert torch.equal(out.clean_i2t, select_clean(F, -3.0, valid=valid))
        assert torch.equal(out.clean_t2i, select_clean(F.T, -3.0, valid=valid))
        torch.testing.assert_close(
            out.weight_i2t, sensitivity(F, margin=0.2, valid=valid), rtol=1e-10, atol=0
        )
        torch.testing.assert_close(
            out.weight_t2i, sensitivity(F.T, margin=0.2, valid=valid), rtol=1e-10, atol=0
        )
        others = [value for name, value in vars(out).items() if name not in ("total", "parts")]
        assert not any(x.requires_grad for x in [*others, *out.parts.values()])
        assert out.total.requires_grad


def test_active_pairs_are_the_clean_ones_inside_the_hinge_of_the_swapped_weight() -> None:
    F = case(40)
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


def test_the_warm_up_leaves_no_hard_negative_out() -> None:
    F = case()
    assert select_clean(F, 0.0).any()
    nobody = torch.zeros(12, dtype=torch.bool)
    expected = sum(complementary(x, nobody, sharpness=1.0, offset=0.5) for x in (F, F.T))
    torch.testing.assert_close(SREM()(F, warmup=True).total, expected, rtol=1e-10, atol=0)


def test_a_warm_up_without_the_complementary_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="warm-up is the complementary loss alone"):
        SREM(complementary=False)(case(), warmup=True)


def test_the_ablation_switches_do_what_they_say() -> None:
    F = case()
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
        F = case().requires_grad_()
        out = SREM(reading=reading)(F, image_ids=ids)
        out.total.backward()
        assert same.sum() == 10
        assert (F.grad[same] == 0).all()
        changed = case()
        changed[same] += 7
        torch.testing.assert_close(SREM(reading=reading)(changed, image_ids=ids).total, out.total.detach())


def test_image_ids_that_are_all_different_change_nothing() -> None:
    F = case()
    one, two = SREM()(F), SREM()(F, image_ids=torch.arange(100, 112))
    torch.testing.assert_close(one.total, two.total, rtol=1e-12, atol=0)
    assert torch.equal(one.clean_i2t, two.clean_i2t)


def test_turning_the_matrix_round_swaps_the_directions() -> None:
    F = case()
    one, two = SREM()(F), SREM()(F.T)
    torch.testing.assert_close(one.total, two.total, rtol=1e-10, atol=0)
    torch.testing.assert_close(one.parts["ranking_i2t"], two.parts["ranking_t2i"], rtol=1e-10, atol=0)
    torch.testing.assert_close(one.weight_t2i, two.weight_i2t, rtol=1e-10, atol=0)


def test_the_order_of_the_pairs_does_not_matter() -> None:
    F, order = case(), torch.randperm(12, generator=torch.Generator().manual_seed(0))
    one, two = SREM()(F), SREM()(F[order][:, order])
    torch.testing.assert_close(one.total, two.total, rtol=1e-10, atol=0)
    torch.testing.assert_close(one.weight_i2t[order], two.weight_i2t, rtol=1e-10, atol=0)


def test_the_fast_gradient_passes_a_numerical_check_where_nothing_is_held_fixed() -> None:
    """Weights and labels are held fixed by design, so they are switched off here."""
    criterion = SREM(weighting=False, rectification=False, energy_weight=0.3)
    for ids in (None, repeated_ids(8)):
        F = case(8).requires_grad_()
        assert torch.autograd.gradcheck(lambda x, ids=ids: criterion(x, image_ids=ids).total, (F,))


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


def test_settings_that_make_no_sense_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="reading must be one of normalized, printed; got 'as written'"):
        SREM(reading="as written")
    with pytest.raises(ValueError, match="energy_weight must be 0 or more, got -1"):
        SREM(energy_weight=-1)


def test_weights_lie_in_the_unit_interval_by_their_entropy() -> None:
    F = case(40).float()
    out = SREM(margin=5.0)(F)  # a margin that nobody keeps, so that every weight is 1 - entropy
    torch.testing.assert_close(out.weight_i2t, 1 - normalized_entropy(F))
