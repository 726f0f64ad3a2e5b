"""Whether there are wrong pairs at all, by hand and in a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sremkit.data import Batches
from sremkit.data.batch import Batch
from sremkit.methods import Surroundings, build_method
from sremkit.methods.srem_plus import SREMPlus
from sremkit.methods.strangers import resemblance, strangers_of
from training import tiny
from training.test_loop import Listener

# Candidates' weights, so that a softmax over some of them is their share.
WEIGHTS = torch.tensor([[9.0, 1.0, 3.0], [2.0, 7.0, 6.0], [4.0, 1.0, 8.0]], dtype=torch.float64)


def test_strangers_by_hand() -> None:
    # Image 0 and text 1: of texts 1, 2 (weights 1, 3) it is 1/4, of images 0, 2 (weights 1, 1) 1/2. Image 1 and text 2:
    # of texts 0, 2 (2, 6) 3/4, of images 0, 1 (3, 6) 2/3. Image 2 and text 0: of texts 0, 1 (4, 1) 4/5, of images 1, 2
    # (2, 4) 2/3.
    expected = [(1 / 4 + 1 / 2) / 2, (3 / 4 + 2 / 3) / 2, (4 / 5 + 2 / 3) / 2]
    probability, are_strangers = strangers_of(WEIGHTS.log())
    assert probability.tolist() == pytest.approx(expected)
    assert are_strangers.all()


def test_captions_of_one_image_are_no_strangers() -> None:
    valid = torch.ones(3, 3, dtype=torch.bool)
    valid[0, 1] = valid[1, 0] = False
    probability, are_strangers = strangers_of(WEIGHTS.log(), valid)
    # Text 1 is none of image 0's; image 2 has texts 0 and 1, text 0 the images 2 alone.
    assert probability.tolist() == pytest.approx([0.0, (1.0 + 2 / 3) / 2, (4 / 5 + 1.0) / 2])
    assert are_strangers.tolist() == [False, True, True]


def test_there_are_no_strangers_in_a_batch_of_one_image() -> None:
    for size in (1, 2, 4):
        _, are_strangers = strangers_of(torch.zeros(size, size), torch.eye(size, dtype=torch.bool))
        assert not are_strangers.any()
    assert not strangers_of(torch.zeros(1, 1)).are_strangers.any()


def test_the_strangest_are_strangers() -> None:
    logits = torch.tensor([[0.0, -500.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    probability, are_strangers = strangers_of(logits)
    assert probability[0] == 0
    assert are_strangers.all()


def test_own_pairs_do_not_matter_to_strangers() -> None:
    better = WEIGHTS.clone()
    better.diagonal().mul_(1e6)
    torch.testing.assert_close(
        strangers_of(better.log()).probability, strangers_of(WEIGHTS.log()).probability
    )


def test_resemblance_by_hand() -> None:
    # One of ten pairs lies below the median of the strangers, so a fifth would be wrong: half of a heap of 0.4.
    memory = torch.tensor([-5.0, -3.0, -3.0, -3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    strangers = torch.tensor([-9.0, -4.0, 7.0])
    assert resemblance(memory, strangers, 0.4) == pytest.approx(0.5)


def test_what_is_as_unlikely_as_can_be_resembles_strangers() -> None:
    # Sharp logits: wrong pairs and strangers are all remembered as one in a million, but for rounding.
    least = torch.logit(torch.zeros(()), eps=1e-6)
    memory = torch.cat([least.expand(40), torch.full((60,), 5.0)])
    assert resemblance(memory + 1e-6, least.expand(9), 0.4) == pytest.approx(2.0)


def two_heaps() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.cat([torch.randn(200, generator=generator) - 4, torch.randn(200, generator=generator) + 4])


def after_warm_up(strangers_at: float, **options: float) -> SREMPlus:
    """A method whose pairs lie in heaps around -4 and 4, and its strangers around here."""
    method = build_method("srem-plus", **options)
    assert isinstance(method, SREMPlus)
    method.start(Surroundings(400, torch.device("cpu")))
    method.memory = two_heaps()
    method.strangers = torch.randn(400, generator=torch.Generator().manual_seed(1)) + strangers_at
    method.finish_epoch()
    return method


@pytest.mark.parametrize(
    ("strangers_at", "least", "believes_all"),
    [(-4.0, 0.2, False), (-8.0, 0.2, True), (-8.0, 0.0, False), (-4.0, 3.0, True)],
)
def test_hard_pairs_are_not_taken_for_wrong_ones(
    strangers_at: float, least: float, believes_all: bool
) -> None:
    method = after_warm_up(strangers_at, least_resemblance=least)
    assert method.believes_all is believes_all
    assert bool((method.belief == 1).all()) is believes_all


def test_the_warm_up_has_the_last_word() -> None:
    method = after_warm_up(-8.0)
    method.begin_epoch(3, warmup=False)
    assert method.strangers.isnan().all()
    method.finish_epoch()  # the heaps are as far apart as before
    assert method.believes_all
    assert (method.belief == 1).all()
    doubting = after_warm_up(-4.0)
    doubting.begin_epoch(3, warmup=False)
    doubting.finish_epoch()
    assert not doubting.believes_all
    assert doubting.belief[:200].max() < 0.1


def loaded(state: dict[str, torch.Tensor]) -> SREMPlus:
    method = build_method("srem-plus")
    assert isinstance(method, SREMPlus)
    method.start(Surroundings(400, torch.device("cpu")))
    method.strangers.fill_(3.0)  # to be replaced, or forgotten
    method.load_state_dict({name: tensor.clone() for name, tensor in state.items()})
    return method


def test_a_stopped_run_knows_what_the_warm_up_said() -> None:
    method = after_warm_up(-8.0)
    torch.testing.assert_close(loaded(method.state_dict()).strangers, method.strangers)
    method.begin_epoch(3, warmup=False)
    resumed = loaded(method.state_dict())
    assert resumed.believes_all
    assert resumed.strangers.isnan().all()


def a_batch_of_three() -> Batch:
    """The first two pairs share their image."""
    batch = Batches(tiny.tiny_pairs(), batch_size=3).take(np.array([0, 1, 2]))
    return replace(batch, pair_id=torch.arange(3))


@pytest.mark.parametrize(("warmup", "least"), [(True, 0.2), (False, 0.2), (True, 0.0)])
def test_strangers_are_remembered_in_the_warm_up_where_they_are_asked(warmup: bool, least: float) -> None:
    method = build_method("srem-plus", least_resemblance=least)
    method.start(Surroundings(3, torch.device("cpu")))
    method.loss(lambda _: WEIGHTS.log().float(), a_batch_of_three(), warmup=warmup)
    known = ~method.strangers.isnan()
    assert known.tolist() == ([False, True, True] if warmup and least else [False] * 3)


def test_least_resemblance_is_checked() -> None:
    with pytest.raises(ValueError, match=r"least_resemblance must be 0, .* got -0.1"):
        build_method("srem-plus", least_resemblance=-0.1)


@pytest.mark.parametrize("noise_rate", [0.0, 0.4])
def test_a_run_knows_whether_there_are_wrong_pairs(noise_rate: float) -> None:
    pairs = tiny.tiny_pairs(num_images=300)
    settings = {"warmup_epochs": 6, "epochs": 2, "decay_after": 2, "learning_rate": 1e-2}
    listener = Listener()
    trainer = tiny.tiny_trainer(
        method="srem-plus", pairs=pairs, noise_rate=noise_rate, reporter=listener, **settings
    )
    trainer.run()
    assert trainer.method.believes_all is (noise_rate == 0)
    assert ["no wrong pairs found" in sentence for sentence in listener.sentences] == [True] * (
        noise_rate == 0
    )
