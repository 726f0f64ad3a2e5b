"""When a warm-up suffices: who wins a batch, by hand and by loops; the rule on measured curves; its state."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from oracles.winning import winning
from sremkit.data import Batches
from sremkit.methods import METHODS, Surroundings, build_method
from sremkit.methods.warming import Warming
from training import tiny

#: Share of winners in each epoch of a long warm-up by complementary learning, batches of 128.
FLICKR8K_40 = [
    0.136,
    0.293,
    0.342,
    0.377,
    0.402,
    0.424,
    0.442,
    0.451,
]  # dual encoder, 40 % of the pairs wrong
FLICKR8K_60 = [0.070, 0.173, 0.209, 0.234, 0.254, 0.268, 0.282, 0.284]
#: 1,000 generated scenes, two seeds. Until the share rises, recall falls to nothing if the warm-up ends.
SCENES_A = [0.009, 0.019, 0.034, 0.064, 0.095, 0.172, 0.317, 0.407, 0.452, 0.479, 0.495, 0.507]
SCENES_B = [
    0.010, 0.020, 0.025, 0.036, 0.035, 0.044, 0.048, 0.066, 0.093, 0.103, 0.126, 0.189, 0.316, 0.402, 0.451, 0.485,
]  # fmt: skip


def first_enough(shares: list[float], *, batch_size: int = 128) -> int | None:
    """After which epoch, counted from 1, the warm-up of these shares ends."""
    warming = Warming()
    warming.guessed = 1 / batch_size
    for epoch, share in enumerate(shares, start=1):
        warming.shares = [*warming.shares[-2:], share]
        if warming.is_enough():
            return epoch
    return None


def seen(*batches: torch.Tensor, image_ids: torch.Tensor | None = None) -> Warming:
    warming = Warming()
    for logits in batches:
        warming.see(logits, image_ids)
    warming.finish_epoch()
    return warming


def test_by_hand_three_pairs_win_four_of_six_times() -> None:
    # Rows: 5 > 1, 0 wins; 2 < 4 loses; 3 > 0, 1 wins. Columns: 5 > 4, 0 wins; 2 > 1 (row 0) and 1 (row 2) wins;
    # 3 = 3 is a tie, which is no win. So 2 + 2 of 6, where guessing among three wins a third.
    logits = torch.tensor([[5.0, 1.0, 0.0], [4.0, 2.0, 3.0], [0.0, 1.0, 3.0]])
    warming = seen(logits)
    assert warming.shares == [pytest.approx(4 / 6)]
    assert warming.guessed == pytest.approx(1 / 3)


def test_two_captions_of_one_image_are_no_rivals() -> None:
    # Pairs 0 and 1 share their image. Row 0: 2 > 0 wins (9 is no rival); row 1: 1 > 0 wins; row 2: 1 > 0 wins.
    # Columns: 2 > 0, 1 > 0 and 1 > 0 win. Candidates: 2, 2 and 3, so guessing wins (1/2 + 1/2 + 1/3) / 3 = 4/9.
    logits = torch.tensor([[2.0, 9.0, 0.0], [9.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    warming = seen(logits, image_ids=torch.tensor([7, 7, 8]))
    assert warming.shares == [1.0]
    assert warming.guessed == pytest.approx(4 / 9)
    assert seen(logits).shares == [pytest.approx(2 / 6)]


def test_an_epoch_counts_every_query_alike_whatever_its_batch() -> None:
    # 8 of 8 queries in a batch of four, 0 of 4 in a batch of two; guessing: 8/4 + 4/2 of 12.
    warming = seen(torch.eye(4), -torch.eye(2))
    assert warming.shares == [pytest.approx(8 / 12)]
    assert warming.guessed == pytest.approx(4 / 12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("repeated", [False, True])
def test_the_counts_are_those_of_loops(repeated: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    for size in (1, 2, 7, 300):
        logits = (torch.randn(size, size, generator=generator) + 2 * torch.eye(size)).to(dtype)
        ids = torch.arange(size) // 2 if repeated else None
        share, guessed = winning(logits.tolist(), None if ids is None else ids.tolist())
        warming = seen(logits, image_ids=ids)
        assert warming.shares == [pytest.approx(share, rel=1e-12)]
        assert warming.guessed == pytest.approx(guessed, rel=1e-12)


def test_where_all_logits_are_alike_nobody_wins() -> None:
    assert seen(torch.zeros(8, 8)).shares == [0.0]


def test_measured_warm_ups_end_where_one_more_epoch_gains_little() -> None:
    assert first_enough(FLICKR8K_40) == 5
    assert first_enough(FLICKR8K_60) == 5
    assert first_enough(SCENES_A) == 10
    assert first_enough(SCENES_B) == 16


def test_a_share_that_creeps_at_the_start_is_not_enough() -> None:
    assert first_enough(SCENES_B[:11]) is None
    assert first_enough([1 / 128] * 20) is None
    # By hand: sqrt(1/128) = 0.0884
    assert first_enough([0.088] * 5) is None
    assert first_enough([0.089] * 5) == 3
    # The same share says more in a larger batch: sqrt(1/1024) = 0.031
    assert first_enough([0.088] * 5, batch_size=1024) == 3


def test_a_share_that_grows_by_a_quarter_in_two_epochs_is_not_enough() -> None:
    assert first_enough([0.4, 0.45, 0.5]) is None  # 0.5 = 1.25 * 0.4
    assert first_enough([0.4, 0.45, 0.499]) == 3
    assert first_enough([0.4, 0.38, 0.3]) == 3  # what falls does not grow
    assert first_enough([0.4, 0.4]) is None  # two epochs cannot tell


def rule_without_chance(before: float, share: float) -> bool:
    return share < 1.1 * before


def rule_of_four_times_chance(before: float, share: float) -> bool:
    return share >= 4 / 128 and share < 1.1 * before


@pytest.mark.parametrize("rule", [rule_without_chance, rule_of_four_times_chance])
def test_simpler_rules_take_the_plateau_for_the_end(rule) -> None:
    """Both end the warm-up of SCENES_B at its fifth epoch, where 3 % of the pairs win; then none is selected."""
    ends = [
        epoch
        for epoch, (before, share) in enumerate(itertools.pairwise(SCENES_B), start=2)
        if rule(before, share)
    ]
    assert ends[0] == 5
    assert first_enough(SCENES_B[:5]) is None


def test_random_logits_never_suffice_though_their_share_does_not_grow() -> None:
    generator = torch.Generator().manual_seed(0)
    warming = Warming()
    for _ in range(6):
        for _ in range(20):
            warming.see(torch.randn(64, 64, generator=generator), None)
        warming.finish_epoch()
        assert warming.shares[-1] == pytest.approx(1 / 64, rel=0.4)
        assert not warming.is_enough()


def test_what_was_reached_is_said_in_words() -> None:
    warming = Warming()
    assert warming.in_words() == "no epoch of it is complete"
    warming.guessed, warming.shares = 1 / 128, [0.342, 0.377, 0.402]
    assert warming.in_words() == "40 % of the pairs win their batch, 18 % more than two epochs before"
    warming.shares = [0.5, 0.4, 0.4]
    assert warming.in_words() == "40 % of the pairs win their batch, 20 % less than two epochs before"
    warming.shares = [0.035]
    assert warming.in_words() == (
        "3.5 % of the pairs win their batch; guessing would win 0.8 %, and 8.8 % is the least that counts"
    )
    warming.shares = [0.4]
    assert "it takes three to see" in warming.in_words()


def test_counting_never_waits_for_the_device() -> None:
    """Tensors without numbers: whoever asks for one raises."""
    with FakeTensorMode():
        warming = Warming()
        ids = torch.arange(8)
        warming.see(torch.randn(8, 8), ids)
        with pytest.raises(RuntimeError):  # so this would have been noticed
            warming._tally.tolist()


def test_the_counts_are_made_in_place_so_that_a_replayed_step_counts_too() -> None:
    warming = Warming()
    tally = warming._tally
    warming.see(torch.eye(4), None)
    warming.finish_epoch()
    warming.see(torch.eye(4), None)
    assert warming._tally is tally
    assert tally.tolist() == [8.0, 2.0, 8.0]


def test_a_state_in_the_middle_of_an_epoch_goes_on_exactly() -> None:
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(6, 6, generator=generator) + torch.eye(6) for _ in range(10)]
    whole, first, second = Warming(), Warming(), Warming()
    for number, logits in enumerate(batches):
        whole.see(logits, None)
        if number == 7:
            second.load_state_dict({name: t.clone() for name, t in first.state_dict().items()})
        (first if number < 7 else second).see(logits, None)
        if number % 3 == 2:
            whole.finish_epoch()
            (first if number < 7 else second).finish_epoch()
    assert len(whole.shares) == 3
    assert second.shares == whole.shares
    assert second._tally.tolist() == whole._tally.tolist()


def test_before_and_after_the_warm_up_there_is_no_state() -> None:
    warming = Warming()
    assert warming.state_dict() == {}
    warming.see(torch.eye(4), None)
    assert set(warming.state_dict()) == {"winning/tally", "winning/shares"}
    warming.forget()
    assert warming.state_dict() == {}
    warming.load_state_dict({})  # of a run stopped before warm-ups were watched
    assert warming.shares == []


class Fixed:
    """A matcher that always gives these logits."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def __call__(self, batch: object) -> torch.Tensor:
        return self.logits


@pytest.mark.parametrize("name", ["srem", "srem-plus"])
def test_both_methods_watch_the_same_share_in_their_warm_up_alone(name: str) -> None:
    batch = Batches(tiny.tiny_pairs(), batch_size=12).take(np.arange(12))  # six images, two captions each
    generator = torch.Generator().manual_seed(5)
    logits = (torch.randn(12, 12, generator=generator) + 3 * torch.eye(12)).requires_grad_()
    share, guessed = winning(logits.tolist(), batch.image_id.tolist())
    method = build_method(name)
    method.start(Surroundings(96, torch.device("cpu")))
    for epoch in range(3):
        method.begin_epoch(epoch, warmup=True)
        assert not method.warmed_up()
        method.loss(Fixed(logits), batch, warmup=True).total.backward()
        method.finish_epoch()
    assert method.warming.shares == [pytest.approx(share)] * 3
    assert method.warming.guessed == pytest.approx(guessed)  # the other caption of an image is no rival
    assert share > math.sqrt(guessed)
    assert method.warming.is_enough()
    assert "0 % more than two epochs before" in method.warmth()
    method.begin_epoch(3, warmup=False)
    method.loss(Fixed(logits), batch, warmup=False)
    method.finish_epoch()
    assert method.warming.state_dict() == {}


@pytest.mark.parametrize("name", ["srem", "srem-plus"])
def test_a_checkpoint_from_before_warm_ups_were_watched_still_loads(name: str) -> None:
    method = build_method(name)
    method.start(Surroundings(4, torch.device("cpu")))
    old = {} if name == "srem" else {"memory": torch.zeros(4), "belief": torch.ones(4)}
    method.load_state_dict(old)
    assert not method.warmed_up()


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("srem", "srem-plus")])
def test_other_methods_cannot_tell(name: str) -> None:
    method = build_method(name)
    assert not method.warmed_up()
    assert method.warmth() == ""
