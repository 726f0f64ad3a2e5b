"""The mismatch probe: by hand, and in a run with and without wrong pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sremkit.data import Batches
from sremkit.data.batch import Batch
from sremkit.methods import TrainingContext, build_method
from sremkit.methods.common.mismatch_probe import mismatch_probe, mismatch_rate, mismatch_ratio
from sremkit.methods.srem_plus import SREMPlusMethod
from training import tiny
from training.test_trainer import Listener

# Candidates' weights, so that a softmax over some of them is their share.
WEIGHTS = torch.tensor([[9.0, 1.0, 3.0], [2.0, 7.0, 6.0], [4.0, 1.0, 8.0]], dtype=torch.float64)


def test_probes_by_hand() -> None:
    # Image 0 and text 1: of texts 1, 2 (weights 1, 3) it is 1/4, of images 0, 2 (weights 1, 1) 1/2. Image 1 and text 2:
    # of texts 0, 2 (2, 6) 3/4, of images 0, 1 (3, 6) 2/3. Image 2 and text 0: of texts 0, 1 (4, 1) 4/5, of images 1, 2
    # (2, 4) 2/3.
    expected = [(1 / 4 + 1 / 2) / 2, (3 / 4 + 2 / 3) / 2, (4 / 5 + 2 / 3) / 2]
    probability, is_valid = mismatch_probe(WEIGHTS.log())
    assert probability.tolist() == pytest.approx(expected)
    assert is_valid.all()


def test_captions_of_one_image_are_no_mismatch() -> None:
    valid = torch.ones(3, 3, dtype=torch.bool)
    valid[0, 1] = valid[1, 0] = False
    probability, is_valid = mismatch_probe(WEIGHTS.log(), valid)
    # Text 1 is none of image 0's; image 2 has texts 0 and 1, text 0 the images 2 alone.
    assert probability.tolist() == pytest.approx([0.0, (1.0 + 2 / 3) / 2, (4 / 5 + 1.0) / 2])
    assert is_valid.tolist() == [False, True, True]


def test_there_are_no_mismatches_in_a_batch_of_one_image() -> None:
    for size in (1, 2, 4):
        _, is_valid = mismatch_probe(torch.zeros(size, size), torch.eye(size, dtype=torch.bool))
        assert not is_valid.any()
    assert not mismatch_probe(torch.zeros(1, 1)).is_valid.any()


def test_the_least_likely_candidate_is_a_mismatch() -> None:
    logits = torch.tensor([[0.0, -500.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    probability, is_valid = mismatch_probe(logits)
    assert probability[0] == 0
    assert is_valid.all()


def test_given_pairs_do_not_change_the_probes() -> None:
    better = WEIGHTS.clone()
    better.diagonal().mul_(1e6)
    torch.testing.assert_close(mismatch_probe(better.log()).probability, mismatch_probe(WEIGHTS.log()).probability)


def test_mismatch_ratio_by_hand() -> None:
    # One of ten pairs lies below the median of the probes, so a fifth would be wrong: half of a weight of 0.4.
    memory = torch.tensor([-5.0, -3.0, -3.0, -3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    probes = torch.tensor([-9.0, -4.0, 7.0])
    assert mismatch_ratio(memory, probes, 0.4) == pytest.approx(0.5)


def test_mismatch_rate_by_hand() -> None:
    # The lower quartile of eight probes is the third smallest, -6: one of ten pairs lies below it, so 40 % are wrong.
    probes = torch.tensor([1.0, -4.0, -9.0, -7.0, -6.0, 2.0, 0.0, 3.0])
    memory = torch.tensor([-8.0, -5.0, -3.0, -3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert mismatch_rate(memory, probes) == pytest.approx(0.4)
    assert mismatch_rate(probes - 5, probes) == 1.0


@pytest.mark.parametrize(("rate", "all_clean"), [(0.0, True), (0.05, False), (0.1, False)])
def test_few_wrong_pairs_among_hard_ones_are_found(rate: float, all_clean: bool) -> None:
    """A third of the pairs are hard and right, as measured on Flickr8k without noise; wrong ones lie at the probes."""
    generator = torch.Generator().manual_seed(0)
    number = 4000
    method = build_method("srem-plus")
    assert isinstance(method, SREMPlusMethod)
    method.start(TrainingContext(number, torch.device("cpu")))
    hard = torch.randn(number, generator=generator) * 1.3 - 2.9
    easy = torch.randn(number, generator=generator) - 1.0
    wrong = torch.randn(number, generator=generator) - 7.7
    draw = torch.rand(number, generator=generator)
    method.memory = torch.where(draw < rate, wrong, torch.where(draw < rate + 0.33, hard, easy))
    method.probe_memory = torch.randn(number, generator=generator) - 7.7
    method.finish_epoch()
    assert method.all_clean is all_clean
    assert method.mismatch_rate == pytest.approx(rate, abs=0.015)


def test_min_mismatch_rate_is_checked() -> None:
    with pytest.raises(ValueError, match="min_mismatch_rate is a share between 0 and 1; got 2"):
        build_method("srem-plus", min_mismatch_rate=2)


def test_clamped_logits_count_as_equal() -> None:
    # Sharp logits: wrong pairs and probes all have the smallest logit, but for rounding.
    least = torch.logit(torch.zeros(()), eps=1e-6)
    memory = torch.cat([least.expand(40), torch.full((60,), 5.0)])
    assert mismatch_ratio(memory + 1e-6, least.expand(9), 0.4) == pytest.approx(2.0)


def two_components() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.cat([torch.randn(200, generator=generator) - 4, torch.randn(200, generator=generator) + 4])


def after_warm_up(probes_at: float, **options: float) -> SREMPlusMethod:
    """A method whose pairs lie around -4 and 4, and its probes around `probes_at`."""
    method = build_method("srem-plus", **options)
    assert isinstance(method, SREMPlusMethod)
    method.start(TrainingContext(400, torch.device("cpu")))
    method.memory = two_components()
    method.probe_memory = torch.randn(400, generator=torch.Generator().manual_seed(1)) + probes_at
    method.finish_epoch()
    return method


@pytest.mark.parametrize(
    ("probes_at", "least", "all_clean"),
    [(-4.0, 0.2, False), (-8.0, 0.2, True), (-8.0, 0.0, False), (-4.0, 3.0, True)],
)
def test_hard_pairs_are_not_taken_for_wrong_ones(probes_at: float, least: float, all_clean: bool) -> None:
    method = after_warm_up(probes_at, min_mismatch_ratio=least, min_mismatch_rate=1.0)  # the ratio alone decides
    assert method.all_clean is all_clean
    assert bool((method.clean_prob == 1).all()) is all_clean


def test_later_epochs_do_not_change_what_the_warm_up_found() -> None:
    method = after_warm_up(-8.0)
    method.begin_epoch(3, warmup=False)
    assert method.probe_memory.isnan().all()
    method.finish_epoch()  # the components are as far apart as before
    assert method.all_clean
    assert (method.clean_prob == 1).all()
    with_noise = after_warm_up(-4.0)
    with_noise.begin_epoch(3, warmup=False)
    with_noise.finish_epoch()
    assert not with_noise.all_clean
    assert with_noise.clean_prob[:200].max() < 0.1


def loaded(state: dict[str, torch.Tensor]) -> SREMPlusMethod:
    method = build_method("srem-plus")
    assert isinstance(method, SREMPlusMethod)
    method.start(TrainingContext(400, torch.device("cpu")))
    method.probe_memory.fill_(3.0)  # to be replaced, or forgotten
    method.load_state_dict({name: tensor.clone() for name, tensor in state.items()})
    return method


def test_a_stopped_run_keeps_what_the_warm_up_found() -> None:
    method = after_warm_up(-8.0)
    torch.testing.assert_close(loaded(method.state_dict()).probe_memory, method.probe_memory)
    method.begin_epoch(3, warmup=False)
    resumed = loaded(method.state_dict())
    assert resumed.all_clean
    assert resumed.probe_memory.isnan().all()


def a_batch_of_three() -> Batch:
    """The first two pairs share their image."""
    batch = Batches(tiny.tiny_pairs(), batch_size=3).take(np.array([0, 1, 2]))
    return replace(batch, pair_id=torch.arange(3))


@pytest.mark.parametrize(("warmup", "least"), [(True, 0.2), (False, 0.2), (True, 0.0)])
def test_probes_are_averaged_in_the_warm_up_only(warmup: bool, least: float) -> None:
    method = build_method("srem-plus", min_mismatch_ratio=least)
    method.start(TrainingContext(3, torch.device("cpu")))
    method.loss(lambda _: WEIGHTS.log().float(), a_batch_of_three(), warmup=warmup)
    known = ~method.probe_memory.isnan()
    assert known.tolist() == ([False, True, True] if warmup and least else [False] * 3)


def test_min_mismatch_ratio_is_checked() -> None:
    with pytest.raises(ValueError, match=r"min_mismatch_ratio must be at least 0, .* got -0.1"):
        build_method("srem-plus", min_mismatch_ratio=-0.1)


@pytest.mark.parametrize("noise_rate", [0.0, 0.4])
def test_a_run_finds_out_whether_there_are_wrong_pairs(noise_rate: float) -> None:
    pairs = tiny.tiny_pairs(num_images=300)
    settings = {"warmup_epochs": 6, "epochs": 2, "decay_after": 2, "learning_rate": 1e-2}
    listener = Listener()
    trainer = tiny.tiny_trainer(method="srem-plus", pairs=pairs, noise_rate=noise_rate, reporter=listener, **settings)
    trainer.run()
    assert trainer.method.all_clean is (noise_rate == 0)
    assert ["no wrong pairs found" in sentence for sentence in listener.sentences] == [True] * (noise_rate == 0)
