"""Whether there are wrong pairs at all, by hand and in a run."""

from __future__ import annotations

import pytest
import torch

from sremkit.methods import Surroundings, build_method
from sremkit.methods.srem_plus import SREMPlus
from sremkit.methods.strangers import resemblance, stranger_probability
from training import tiny

# Candidates' weights, so that a softmax over some of them is their share.
WEIGHTS = torch.tensor([[9.0, 1.0, 3.0], [2.0, 7.0, 6.0], [4.0, 1.0, 8.0]], dtype=torch.float64)


def test_strangers_by_hand() -> None:
    # Image 0 and text 1: of texts 1, 2 (weights 1, 3) it is 1/4, of images 0, 2 (weights 1, 1) 1/2. Image 1 and text 2:
    # of texts 0, 2 (2, 6) 3/4, of images 0, 1 (3, 6) 2/3. Image 2 and text 0: of texts 0, 1 (4, 1) 4/5, of images 1, 2
    # (2, 4) 2/3.
    expected = [(1 / 4 + 1 / 2) / 2, (3 / 4 + 2 / 3) / 2, (4 / 5 + 2 / 3) / 2]
    assert stranger_probability(WEIGHTS.log()).tolist() == pytest.approx(expected)


def test_captions_of_one_image_are_no_strangers() -> None:
    valid = torch.ones(3, 3, dtype=torch.bool)
    valid[0, 1] = valid[1, 0] = False
    found = stranger_probability(WEIGHTS.log(), valid)
    # Text 1 is none of image 0's; image 2 has texts 0 and 1, text 0 the images 2 alone.
    assert found.tolist() == pytest.approx([0.0, (1.0 + 2 / 3) / 2, (4 / 5 + 1.0) / 2])


def test_own_pairs_do_not_matter_to_strangers() -> None:
    better = WEIGHTS.clone()
    better.diagonal().mul_(1e6)
    torch.testing.assert_close(stranger_probability(better.log()), stranger_probability(WEIGHTS.log()))


def test_resemblance_by_hand() -> None:
    # One of ten pairs lies below the median of the strangers, so a fifth would be wrong: half of a heap of 0.4.
    memory = torch.tensor([-5.0, -3.0, -3.0, -3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    strangers = torch.tensor([-9.0, -4.0, 7.0])
    assert resemblance(memory, strangers, 0.4) == pytest.approx(0.5)


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
    ("strangers_at", "least", "all_right"),
    [(-4.0, 0.2, False), (-8.0, 0.2, True), (-8.0, 0.0, False), (-4.0, 3.0, True)],
)
def test_hard_pairs_are_not_taken_for_wrong_ones(strangers_at: float, least: float, all_right: bool) -> None:
    method = after_warm_up(strangers_at, least_resemblance=least)
    assert method.all_right is all_right
    assert bool((method.belief == 1).all()) is all_right


def test_the_warm_up_has_the_last_word() -> None:
    method = after_warm_up(-8.0)
    method.begin_epoch(3, warmup=False)
    assert method.strangers.isnan().all()
    method.finish_epoch()  # the heaps are as far apart as before
    assert method.all_right
    assert (method.belief == 1).all()
    doubting = after_warm_up(-4.0)
    doubting.begin_epoch(3, warmup=False)
    doubting.finish_epoch()
    assert not doubting.all_right
    assert doubting.belief[:200].max() < 0.1


def test_a_stopped_run_knows_what_the_warm_up_said() -> None:
    method = after_warm_up(-8.0)
    resumed = build_method("srem-plus")
    resumed.start(Surroundings(400, torch.device("cpu")))
    resumed.load_state_dict(method.state_dict())
    torch.testing.assert_close(resumed.strangers, method.strangers)
    method.begin_epoch(3, warmup=False)
    resumed.load_state_dict(method.state_dict())
    assert resumed.all_right
    assert resumed.strangers.isnan().all()


@pytest.mark.parametrize("noise_rate", [0.0, 0.4])
def test_a_run_knows_whether_there_are_wrong_pairs(noise_rate: float) -> None:
    pairs = tiny.tiny_pairs(num_images=300)
    settings = {"warmup_epochs": 6, "epochs": 2, "decay_after": 2, "learning_rate": 1e-2}
    trainer = tiny.tiny_trainer(method="srem-plus", pairs=pairs, noise_rate=noise_rate, **settings)
    trainer.run()
    assert trainer.method.all_right is (noise_rate == 0)
