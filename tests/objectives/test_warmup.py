"""The monitor of the warm-up in a loop of one's own, and the warnings of SREM about its use."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import normalize

from sremkit import SREM, Terms, WarmupMonitor
from sremkit.errors import UserNotice

FLAT = 0.1 * torch.eye(8)  # every pair is ranked first, with a nearly uniform softmax
SHARP = 20.0 * torch.eye(8) - 10
TIED = torch.zeros(8, 8)  # no pair is ranked first


def terms_of(*rows: torch.Tensor) -> list[Terms]:
    return [SREM()(logits) for logits in rows]


def monitored(*rows: torch.Tensor, **options: object) -> WarmupMonitor:
    monitor = WarmupMonitor(interval=None, **options)
    for terms in terms_of(*rows):
        monitor.update(terms)
    monitor.check()
    return monitor


def test_the_mean_is_over_selected_pairs_with_the_weights_of_their_ranking_loss() -> None:
    torch.manual_seed(0)
    monitor, weights, selected = WarmupMonitor(interval=None), [], 0
    for _ in range(3):
        terms = SREM()(3 * torch.eye(6) + torch.randn(6, 6))
        monitor.update(terms)
        for weight, clean in ((terms.weight_i2t, terms.clean_t2i), (terms.weight_t2i, terms.clean_i2t)):
            weights += [float(w) for w, c in zip(weight, clean, strict=True) if c]
            selected += int(clean.sum())
    assert math.isnan(monitor.mean_weight)  # nothing has been read
    assert monitor.message() == "no batch was monitored"
    monitor.check()
    assert monitor.mean_weight == pytest.approx(sum(weights) / len(weights))
    assert monitor.share == pytest.approx(selected / 36)
    assert 0 < monitor.share < 1


def test_flat_rows_continue_the_warm_up_and_sharp_ones_end_it() -> None:
    flat, sharp, tied = (monitored(logits) for logits in (FLAT, SHARP, TIED))
    assert flat.warmup
    assert flat.share == 1.0
    assert flat.mean_weight < 0.01
    assert tied.warmup
    assert tied.message() == "no pair was selected"
    assert not sharp.warmup
    assert sharp.message() == "100% of the pairs are selected, their mean weight is 1.00"
    assert monitored(FLAT, min_weight=0.0).warmup is False


def test_it_is_read_every_interval_and_a_lost_selection_returns_to_the_warm_up() -> None:
    monitor = WarmupMonitor(interval=3)
    states = []
    for terms in terms_of(*[SHARP] * 5):
        monitor.update(terms)
        states.append(monitor.warmup)
    assert states == [True, True, False, False, False]
    half = SHARP.clone()
    half[:5, :5] = 0.0  # 3 of 8 pairs stay selected: less than half of all
    [terms] = terms_of(half)
    for _ in range(3):  # one completes the interval, three fill the next
        monitor.update(terms)
    with pytest.warns(UserNotice, match=r"returns to the warm-up: .* are selected, after 100.0% at its end"):
        monitor.update(terms)
    assert monitor.warmup


def test_a_selection_that_shrinks_by_less_than_half_is_not_lost() -> None:
    monitor = monitored(SHARP)
    most = SHARP.clone()
    most[:3, :3] = 0.0  # 5 of 8
    for terms in terms_of(most):
        monitor.update(terms)
    monitor.check()
    assert not monitor.warmup


def test_a_state_continues_exactly() -> None:
    whole, first, second = (WarmupMonitor(interval=3) for _ in range(3))
    for number, terms in enumerate(terms_of(*[SHARP, FLAT] * 5)):
        if number == 4:
            second.load_state_dict({name: t.clone() for name, t in first.state_dict().items()})
        whole.update(terms)
        (first if number < 4 else second).update(terms)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], value, equal_nan=True, rtol=0, atol=0)


def test_adding_a_batch_never_waits_for_the_device() -> None:
    """Tensors without values: reading one raises."""
    with FakeTensorMode():
        monitor = WarmupMonitor(interval=None)
        monitor.update(SREM(check_finite=False)(torch.randn(8, 8)))
        with pytest.raises(RuntimeError):
            monitor.check()


@pytest.mark.parametrize("options", [{"min_weight": 1.5}, {"min_share": -1.0}, {"interval": 0}])
def test_impossible_options_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match="must"):
        WarmupMonitor(**options)


def warnings_of(criterion: SREM, *calls: tuple[torch.Tensor, bool]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for logits, warmup in calls:
            criterion(logits, warmup=warmup)
    return [str(warning.message) for warning in caught]


def test_cosines_as_logits_are_reported_once() -> None:
    torch.manual_seed(0)
    cosines = normalize(torch.randn(16, 8)) @ normalize(torch.randn(16, 8)).T
    [sentence] = warnings_of(SREM(), *[(cosines, True)] * 300)
    assert "lie within [-1, 1]" in sentence
    assert "scale * cosine + bias" in sentence
    assert warnings_of(SREM(), *[(20 * cosines - 10, True)] * 300) == []
    assert warnings_of(SREM(check_finite=False), *[(cosines, True)] * 300) == []
    assert warnings_of(SREM().eval(), *[(cosines, True)] * 300) == []


def test_a_warm_up_that_ends_too_early_is_reported_once() -> None:
    early = [(FLAT, True), (FLAT, True), (FLAT, False), (FLAT, False)]
    [sentence] = warnings_of(SREM(), *early)
    assert "ended too early: the mean weight of the selected pairs is 0.00" in sentence
    [sentence] = warnings_of(SREM(), (TIED, True), (TIED, False))
    assert "no pair is selected" in sentence
    assert warnings_of(SREM(), (FLAT, False), (FLAT, False)) == []  # without a warm-up, as in an evaluation
    assert warnings_of(SREM(), (SHARP, True), (SHARP, False)) == []
    assert warnings_of(SREM(weighting=False), *early) == []


def test_a_loop_of_thirty_lines_trains_through_the_end_of_its_warm_up() -> None:
    torch.manual_seed(0)
    latent = torch.randn(256, 8)
    images, texts = latent @ torch.randn(8, 32), latent @ torch.randn(8, 24)
    texts[:102] = texts[:102].roll(1, dims=0)
    to_image, to_text = torch.nn.Linear(32, 16), torch.nn.Linear(24, 16)
    scale, bias = (torch.nn.Parameter(torch.tensor(value)) for value in (8.0, -4.0))
    optimizer = torch.optim.Adam([*to_image.parameters(), *to_text.parameters(), scale, bias], lr=0.01)
    criterion, monitor, warmup_steps = SREM(), WarmupMonitor(interval=4), 0
    for _ in range(40):
        for pairs in torch.randperm(256).split(64):
            logits = scale * normalize(to_image(images[pairs])) @ normalize(to_text(texts[pairs])).T + bias
            out = criterion(logits, warmup=monitor.warmup)
            optimizer.zero_grad()
            out.total.backward()
            optimizer.step()
            warmup_steps += monitor.warmup
            monitor.update(out)
    assert 8 < warmup_steps < 120
    clean = criterion(logits).clean_i2t
    wrong = pairs < 102
    assert clean[~wrong].float().mean() > 0.9
    assert clean[wrong].float().mean() < 0.1
