"""In-batch accuracy: by hand and by loops; the rule for a warm-up that suffices on measured curves; its state."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from oracles.batch_accuracy import batch_accuracy
from sremkit.data import Batches
from sremkit.methods import METHODS, TrainingContext, WarmupStatus, build_method
from sremkit.methods.common.batch_accuracy import BatchAccuracy
from training import tiny

#: Accuracy in each epoch of a long warm-up by complementary learning, batches of 128.
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
#: 1,000 generated scenes, two seeds. Until the accuracy rises, recall falls to nothing if the warm-up ends.
SCENES_A = [0.009, 0.019, 0.034, 0.064, 0.095, 0.172, 0.317, 0.407, 0.452, 0.479, 0.495, 0.507]
SCENES_B = [
    0.010, 0.020, 0.025, 0.036, 0.035, 0.044, 0.048, 0.066, 0.093, 0.103, 0.126, 0.189, 0.316, 0.402, 0.451, 0.485,
]  # fmt: skip


def first_sufficient(shares: list[float], *, batch_size: int = 128) -> int | None:
    """After which epoch, counted from 1, the warm-up of these shares may end."""
    accuracy = BatchAccuracy()
    accuracy.chance = 1 / batch_size
    for epoch, accuracy.accuracy in enumerate(shares, start=1):
        if accuracy.is_sufficient():
            return epoch
    return None


def monitored(*batches: torch.Tensor, image_ids: torch.Tensor | None = None) -> BatchAccuracy:
    accuracy = BatchAccuracy()
    for logits in batches:
        accuracy.update(logits, image_ids)
    accuracy.finish_epoch()
    return accuracy


def test_by_hand_four_of_six_queries_are_ranked_first() -> None:
    # Rows: 5 > 1, 0 wins; 2 < 4 loses; 3 > 0, 1 wins. Columns: 5 > 4, 0 wins; 2 > 1 (row 0) and 1 (row 2) wins;
    # 3 = 3 is a tie, which does not count. So 2 + 2 of 6, where chance is a third.
    logits = torch.tensor([[5.0, 1.0, 0.0], [4.0, 2.0, 3.0], [0.0, 1.0, 3.0]])
    accuracy = monitored(logits)
    assert accuracy.accuracy == pytest.approx(4 / 6)
    assert accuracy.chance == pytest.approx(1 / 3)


def test_captions_of_one_image_are_no_negatives() -> None:
    # Pairs 0 and 1 share their image. Row 0: 2 > 0 wins (9 is excluded); row 1: 1 > 0 wins; row 2: 1 > 0 wins.
    # Columns: 2 > 0, 1 > 0 and 1 > 0 win. Candidates: 2, 2 and 3, so chance is (1/2 + 1/2 + 1/3) / 3 = 4/9.
    logits = torch.tensor([[2.0, 9.0, 0.0], [9.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    accuracy = monitored(logits, image_ids=torch.tensor([7, 7, 8]))
    assert accuracy.accuracy == 1.0
    assert accuracy.chance == pytest.approx(4 / 9)
    assert monitored(logits).accuracy == pytest.approx(2 / 6)


def test_an_epoch_counts_every_query_alike_whatever_its_batch() -> None:
    # 8 of 8 queries in a batch of four, 0 of 4 in a batch of two; guessing: 8/4 + 4/2 of 12.
    accuracy = monitored(torch.eye(4), -torch.eye(2))
    assert accuracy.accuracy == pytest.approx(8 / 12)
    assert accuracy.chance == pytest.approx(4 / 12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("repeated", [False, True])
def test_the_counts_are_those_of_loops(repeated: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    for size in (1, 2, 7, 300):
        logits = (torch.randn(size, size, generator=generator) + 2 * torch.eye(size)).to(dtype)
        ids = torch.arange(size) // 2 if repeated else None
        expected, chance = batch_accuracy(logits.tolist(), None if ids is None else ids.tolist())
        accuracy = monitored(logits, image_ids=ids)
        assert accuracy.accuracy == pytest.approx(expected, rel=1e-12)
        assert accuracy.chance == pytest.approx(chance, rel=1e-12)


def test_equal_logits_rank_no_pair_first() -> None:
    assert monitored(torch.zeros(8, 8)).accuracy == 0.0


def test_measured_warm_ups_suffice_when_the_accuracy_has_left_the_plateau() -> None:
    assert first_sufficient(FLICKR8K_40) == 1
    assert first_sufficient(FLICKR8K_60) == 2
    assert first_sufficient(SCENES_A) == 5
    assert first_sufficient(SCENES_B) == 9


def test_an_accuracy_near_chance_does_not_suffice() -> None:
    assert first_sufficient([1 / 128] * 20) is None
    # By hand: sqrt(1/128) = 0.0884
    assert first_sufficient([0.088] * 5) is None
    assert first_sufficient([0.089] * 5) == 1
    # The same accuracy means more in a larger batch: sqrt(1/1024) = 0.031
    assert first_sufficient([0.088] * 5, batch_size=1024) == 1


def test_random_logits_never_suffice() -> None:
    generator = torch.Generator().manual_seed(0)
    accuracy = BatchAccuracy()
    for _ in range(6):
        for _ in range(20):
            accuracy.update(torch.randn(64, 64, generator=generator), None)
        accuracy.finish_epoch()
        assert accuracy.accuracy == pytest.approx(1 / 64, rel=0.4)
        assert not accuracy.is_sufficient()


def test_the_message_tells_what_was_reached() -> None:
    accuracy = BatchAccuracy()
    assert accuracy.message() == "no epoch of it is complete"
    accuracy.chance, accuracy.accuracy = 1 / 128, 0.402
    assert accuracy.message() == "in-batch accuracy 40 %"
    accuracy.accuracy = 0.035
    assert accuracy.message() == "in-batch accuracy 3.5 %, at least 8.8 % needed (chance 0.8 %)"


def test_counting_never_waits_for_the_device() -> None:
    """Tensors without numbers: whoever asks for one raises."""
    with FakeTensorMode():
        accuracy = BatchAccuracy()
        ids = torch.arange(8)
        accuracy.update(torch.randn(8, 8), ids)
        with pytest.raises(RuntimeError):  # so this would have been noticed
            accuracy._sums.tolist()


def test_the_counts_are_made_in_place_so_that_a_replayed_step_counts_too() -> None:
    accuracy = BatchAccuracy()
    tally = accuracy._sums
    accuracy.update(torch.eye(4), None)
    accuracy.finish_epoch()
    accuracy.update(torch.eye(4), None)
    assert accuracy._sums is tally
    assert tally.tolist() == [8.0, 2.0, 8.0]


def test_a_state_in_the_middle_of_an_epoch_goes_on_exactly() -> None:
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(6, 6, generator=generator) + torch.eye(6) for _ in range(10)]
    whole, first, second = BatchAccuracy(), BatchAccuracy(), BatchAccuracy()
    for number, logits in enumerate(batches):
        whole.update(logits, None)
        if number == 7:
            second.load_state_dict({name: t.clone() for name, t in first.state_dict().items()})
        (first if number < 7 else second).update(logits, None)
        if number % 3 == 2:
            whole.finish_epoch()
            (first if number < 7 else second).finish_epoch()
    assert second.accuracy == whole.accuracy
    assert second._sums.tolist() == whole._sums.tolist()


def test_before_and_after_the_warm_up_there_is_no_state() -> None:
    accuracy = BatchAccuracy()
    assert accuracy.state_dict() == {}
    accuracy.update(torch.eye(4), None)
    assert set(accuracy.state_dict()) == {"batch_accuracy/sums"}
    accuracy.reset()
    assert accuracy.state_dict() == {}
    accuracy.load_state_dict({})  # of a run stopped before warm-ups were watched
    assert math.isnan(accuracy.accuracy)


class Fixed:
    """A forward pass with these logits."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def __call__(self, batch: object) -> torch.Tensor:
        return self.logits


MONITORED = [name for name in METHODS if hasattr(build_method(name), "batch_accuracy")]


@pytest.mark.parametrize("name", MONITORED)
def test_methods_monitor_the_accuracy_in_their_warm_up_only(name: str) -> None:
    batch = Batches(tiny.tiny_pairs(), batch_size=12).take(np.arange(12))  # six images, two captions each
    generator = torch.Generator().manual_seed(5)
    logits = (torch.randn(12, 12, generator=generator) + 3 * torch.eye(12)).requires_grad_()
    expected, chance = batch_accuracy(logits.tolist(), batch.image_id.tolist())
    method = build_method(name)
    method.start(TrainingContext(96, torch.device("cpu")))
    assert not method.warmup_status().is_ready  # no epoch is complete
    for epoch in range(3):
        method.begin_epoch(epoch, warmup=True)
        method.loss(Fixed(logits), batch, warmup=True).total.backward()
        method.finish_epoch()
        assert method.batch_accuracy.accuracy == pytest.approx(expected)
    assert method.batch_accuracy.chance == pytest.approx(chance)  # captions of the same image are excluded
    assert expected > math.sqrt(chance)
    status = method.warmup_status()
    assert status.is_ready
    assert status.message.startswith("in-batch accuracy")
    method.begin_epoch(3, warmup=False)
    method.loss(Fixed(logits), batch, warmup=False)
    method.finish_epoch()
    assert method.batch_accuracy.state_dict() == {}


@pytest.mark.parametrize("name", MONITORED)
def test_a_state_without_the_monitor_loads(name: str) -> None:
    method = build_method(name)
    method.start(TrainingContext(4, torch.device("cpu")))
    method.load_state_dict({key: value for key, value in method.state_dict().items() if "accuracy" not in key})
    assert not method.warmup_status().is_ready


@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name].monitors_warmup])
def test_methods_without_a_monitor_are_always_ready(name: str) -> None:
    assert build_method(name).warmup_status() == WarmupStatus()
