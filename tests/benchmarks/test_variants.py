"""The variant is SREM by default, and each option does what its name states."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.variants import NAME, SREMVariant
from logit_cases import WORKED, different, random_logits, repeated_ids
from oracles import variants as oracle
from sremkit.errors import UserError
from sremkit.methods import build_method
from sremkit.training.diagnostics import StoppedError
from sremkit.training.run_folder import RunFolder
from training import tiny
from variant_cases import SIZE, apart, batch_of, loss_of

PER_PAIR = [f"{what}_{way}" for what in ("energy", "clean", "weight", "active") for way in ("i2t", "t2i")]
CHANGES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "relative margins": {"relative_margins": True, "clean_margin": -0.5, "noisy_margin": 0.5, "energy_weight": 0.1},
    "equal logits": {"threshold_from": "equal-logits", "threshold": -1.0},
    "median": {"threshold_from": "median"},
    "mean": {"threshold_from": "mean"},
    "both": {"clean_set": "both"},
    "either": {"clean_set": "either"},
    "i2t": {"clean_set": "i2t"},
    "own weights": {"weights": "own"},
}  # fmt: skip


@pytest.mark.parametrize("warmup", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
def test_with_its_defaults_the_variant_is_srem(
    warmup: bool, masked: bool, dtype: torch.dtype, tolerance: float
) -> None:
    options = {"mask_repeated_images": masked, "complementary_weight": 0.3, "energy_weight": 0.05}
    for seed in range(5):
        logits = random_logits(SIZE, seed=seed).to(dtype)
        batch = batch_of(repeated_ids(SIZE))
        expected, expected_gradient = loss_of(build_method("srem", **options), logits, batch, warmup=warmup)
        found, gradient = loss_of(build_method(NAME, **options), logits, batch, warmup=warmup)
        torch.testing.assert_close(found.total, expected.total, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(gradient, expected_gradient, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(found.parts, expected.parts, rtol=tolerance, atol=tolerance)
        for name in PER_PAIR:
            mine, theirs = getattr(found, name), getattr(expected, name)
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, msg=name)
            assert not mine.requires_grad


def trained_logits(method: Any, *, steps: int = 150) -> Tensor:
    """Logits that were free to follow the loss, float64."""
    logits = random_logits(SIZE, seed=3)
    for step in range(steps):
        logits = logits - 0.5 * loss_of(method, logits, apart(SIZE), warmup=step < 20)[1]
    return logits


def test_many_steps_with_the_variant_lead_where_those_with_srem_lead() -> None:
    """In float32 runs part by rounding, since the filter says yes or no; in float64 they may not."""
    expected = trained_logits(build_method("srem"))
    torch.testing.assert_close(trained_logits(build_method(NAME)), expected, rtol=1e-9, atol=1e-9)
    other = trained_logits(build_method(NAME, threshold_from="median"))
    assert (other - expected).abs().max() > 0.01


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_each_option_agrees_with_the_loops(change: str, masked: bool) -> None:
    for seed in range(4):
        logits = random_logits(SIZE, seed=seed)
        image_ids = repeated_ids(SIZE)
        valid = different(image_ids).tolist() if masked else None
        expected = oracle.total(logits.tolist(), valid=valid, **CHANGES[change])
        method = build_method(NAME, mask_repeated_images=masked, **CHANGES[change])
        found, _ = loss_of(method, logits, batch_of(image_ids))
        assert found.total.item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("change", "wrong_twin"),
    [
        ("relative margins", {"relative_margins": False}),
        ("relative margins", {"clean_margin": 0.5, "noisy_margin": -0.5}),
        ("equal logits", {"threshold": 1.0}),
        ("equal logits", {"threshold_from": "zero"}),
        ("median", {"threshold_from": "mean"}),
        ("both", {"clean_set": "either"}),
        ("either", {"clean_set": "own"}),
        ("i2t", {"clean_set": "own"}),
        ("own weights", {"weights": "swapped"}),
    ],
)
def test_the_loops_reject_a_wrong_twin(change: str, wrong_twin: dict[str, Any]) -> None:
    """What a mistake would compute is far from the oracle, so that the comparison above means something."""
    right, wrong = CHANGES[change], {**CHANGES[change], **wrong_twin}
    gaps = []
    for seed in range(4):
        logits = random_logits(SIZE, seed=seed)
        found, _ = loss_of(build_method(NAME, **wrong), logits, apart(SIZE))
        gaps.append(abs(found.total.item() - oracle.total(logits.tolist(), **right)))
    assert max(gaps) > 1e-4


def test_the_threshold_counted_from_equal_logits_by_hand() -> None:
    # The rows' exponentials sum to 8, 8 and 6 (columns: 8, 5, 9), so the energies are -ln of that. Of the rows the
    # first and the last lead (5 > 2 and 3 > 2), of the columns the first alone (5 > 2; 1 < 2; 3 < 5).
    # Equal logits: -ln 3. Counted from there, c = -ln 2 asks for a sum above 6: 8 has it, 6 has not.
    method = build_method(NAME, threshold_from="equal-logits", threshold=-math.log(2) - 1e-9)
    terms, _ = loss_of(method, WORKED, apart(3))
    assert terms.clean_i2t.tolist() == [True, False, False]
    assert terms.clean_t2i.tolist() == [True, False, False]
    wider, _ = loss_of(build_method(NAME, threshold_from="equal-logits"), WORKED, apart(3))
    assert wider.clean_i2t.tolist() == [True, False, True]


def test_repeated_images_count_neither_in_the_energy_nor_in_what_it_is_compared_with() -> None:
    # All logits 0 but the pairs' own at ln 2: a row of two candidates sums to 3 > 2, one of three to 4 > 3. With
    # -ln 3 for every row, the rows that lack a candidate would sit exactly on the line and fall.
    logits = math.log(2) * torch.eye(3, dtype=torch.float64)
    method = build_method(NAME, threshold_from="equal-logits", threshold=-1e-9)
    terms, _ = loss_of(method, logits, batch_of(torch.tensor([7, 7, 8])))
    assert terms.energy_i2t.tolist() == pytest.approx([-math.log(3), -math.log(3), -math.log(4)])
    assert terms.clean_i2t.tolist() == [True, True, True]


def test_adaptive_thresholds_by_hand() -> None:
    # Diagonal ln 9, ln 2, ln 3 and ln 5 among logits of 0: sums 12, 5, 6, 8, all leading. Median energy, the lower
    # of the two in the middle: -ln 8, below it only -ln 12. Mean: -(ln 12 + ln 5 + ln 6 + ln 8) / 4 = -ln 7.33, so
    # the last is below it too.
    logits = torch.tensor([9.0, 2.0, 3.0, 5.0], dtype=torch.float64).log().diag()
    median, _ = loss_of(build_method(NAME, threshold_from="median"), logits, apart(4))
    assert median.clean_i2t.tolist() == [True, False, False, False]
    mean, _ = loss_of(build_method(NAME, threshold_from="mean"), logits, apart(4))
    assert mean.clean_i2t.tolist() == [True, False, False, True]


def test_relative_margins_by_hand() -> None:
    # Rows of WORKED: energies -ln 8, -ln 8, -ln 6, mean -ln(384) / 3 = -1.983547; relative -0.095894 twice and
    # 0.191788. Clean are the first and the last. With d = 0.5: clean (0.404106^2 + 0.691788^2) / 2, noisy 0.595894^2.
    method = build_method(NAME, relative_margins=True, clean_margin=-0.5, noisy_margin=0.5)
    terms, _ = loss_of(method, WORKED, apart(3))
    expected = (0.404106**2 + 0.691788**2) / 2 + 0.595894**2
    assert terms.parts["energy_i2t"].item() == pytest.approx(expected, abs=5e-6)


def test_relative_margins_neither_reward_nor_punish_what_all_energies_share() -> None:
    """A mean without gradient would give the same value, and move all energies together all the same."""
    heavy = {"relative_margins": True, "clean_margin": -1.0, "noisy_margin": 1.0, "energy_weight": 100.0}
    logits = random_logits(SIZE)
    terms, with_bound = loss_of(build_method(NAME, **heavy), logits, apart(SIZE))
    _, without = loss_of(build_method(NAME, **{**heavy, "energy_weight": 0.0}), logits, apart(SIZE))
    assert (with_bound - without).abs().sum() > 1
    assert (with_bound - without).sum().item() == pytest.approx(0.0, abs=1e-9)
    shifted, _ = loss_of(build_method(NAME, **heavy, threshold=1e9), logits + 3.0, apart(SIZE))
    in_place, _ = loss_of(build_method(NAME, **heavy, threshold=1e9), logits, apart(SIZE))
    for way in ("energy_i2t", "energy_t2i"):
        assert shifted.parts[way].item() == pytest.approx(in_place.parts[way].item(), rel=1e-10)
        assert terms.parts[way] > 0


@pytest.mark.parametrize(
    ("rule", "i2t", "t2i"),
    [
        ("own", [True, False, True], [True, False, False]),
        ("both", [True, False, False], [True, False, False]),
        ("either", [True, False, True], [True, False, True]),
        ("i2t", [True, False, True], [True, False, True]),
    ],
)
def test_clean_sets_by_hand(rule: str, i2t: list[bool], t2i: list[bool]) -> None:
    terms, _ = loss_of(build_method(NAME, clean_set=rule), WORKED, apart(3))
    assert terms.clean_i2t.tolist() == i2t
    assert terms.clean_t2i.tolist() == t2i


def test_the_images_set_is_not_the_texts_set() -> None:
    terms, _ = loss_of(build_method(NAME, clean_set="i2t"), WORKED.T, apart(3))
    assert terms.clean_i2t.tolist() == terms.clean_t2i.tolist() == [True, False, False]


def test_the_ranking_of_images_is_watched_with_the_weight_it_used() -> None:
    logits = random_logits(SIZE, seed=1)
    swapped, _ = loss_of(build_method(NAME), logits, apart(SIZE))
    own, _ = loss_of(build_method(NAME, weights="own"), logits, apart(SIZE))
    assert torch.equal(own.weight_t2i, swapped.weight_i2t)
    assert torch.equal(own.weight_i2t, swapped.weight_t2i)
    assert not torch.equal(own.weight_t2i, own.weight_i2t)


def test_a_pair_is_active_exactly_where_the_ranking_moves_its_own_logit() -> None:
    ranking_alone = {"energy_weight": 0.0, "complementary_weight": 0.0}
    some = 0
    for change in CHANGES.values():
        for seed in range(3):
            logits = random_logits(SIZE, seed=seed, lift=1.0)
            terms, gradient = loss_of(build_method(NAME, **{**change, **ranking_alone}), logits, apart(SIZE))
            moved = gradient.diagonal() < 0
            assert moved.tolist() == (terms.active_i2t | terms.active_t2i).tolist()
            some += int(moved.sum())
    assert some > 20


def test_the_energy_weight_rises_by_equal_steps_after_the_warm_up() -> None:
    method = SREMVariant(energy_ramp_epochs=5, energy_weight=0.1)
    found = []
    for epoch in range(9):
        method.begin_epoch(epoch, warmup=epoch < 2)
        found.append(method.energy_weight)
    assert found == pytest.approx([0, 0, 0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.1])
    assert SREMVariant(energy_weight=0.1).energy_weight == 0.1


def test_the_ramp_weighs_the_bound_and_stays_the_same_within_an_epoch() -> None:
    logits = random_logits(SIZE)
    method = SREMVariant(energy_ramp_epochs=4, energy_weight=0.8)
    for epoch in range(3):
        method.begin_epoch(epoch, warmup=False)
    plain = SREMVariant(energy_weight=0.4)  # two of four epochs are over
    for _ in range(2):
        found, gradient = loss_of(method, logits, apart(SIZE))
        expected, expected_gradient = loss_of(plain, logits, apart(SIZE))
        assert found.total.item() == pytest.approx(expected.total.item(), rel=1e-12)
        torch.testing.assert_close(gradient, expected_gradient)


def test_a_run_with_a_ramp_goes_on_exactly_where_it_was_stopped(tmp_path: Path) -> None:
    from training.test_resume import StopAfter, assert_same

    options = {"method": NAME, "method_options": {"energy_ramp_epochs": 3, "energy_weight": 0.1}}
    whole = RunFolder.create(tmp_path / "whole", config="")
    tiny.tiny_trainer(whole, **options).run()
    stopped = RunFolder.create(tmp_path / "stopped", config="")
    with pytest.raises(StoppedError):  # 6 steps an epoch, two epochs of warm-up: in the middle of the ramp
        tiny.tiny_trainer(stopped, **options, reporter=StopAfter(21)).run()
    tiny.tiny_trainer(stopped, **options).run()
    assert_same(whole, stopped)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"clean_set": "all"}, "'method.clean_set' must be one of 'own', 'both', 'either', 'i2t', got 'all'"),
        ({"threshold_from": "0"}, "'method.threshold_from' must be one of 'zero', 'equal-logits'"),
        ({"weights": "none"}, "'method.weights' must be one of 'swapped', 'own'"),
        ({"filtration": False}, "'method.filtration' is a switch of the method 'srem'"),
        ({"clean_margins": 1.0}, "no setting 'method.clean_margins'; did you mean 'method.clean_margin'"),
    ],
)
def test_what_a_variant_cannot_do_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build_method(NAME, **options)
