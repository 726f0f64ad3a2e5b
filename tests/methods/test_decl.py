"""DECL as a method: its total, its schedule of hardness, its division."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from oracles import decl as oracle
from sremkit.data import Batches, make_noise
from sremkit.data.batch import Batch
from sremkit.methods import TrainingContext, build_method
from sremkit.methods.decl import DECL
from training import tiny

CLEAN = [True, False, True, True, False, True]


class Fixed:
    """A matcher that always gives these logits."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def __call__(self, batch: object) -> torch.Tensor:
        return self.logits


def six() -> tuple[Batch, torch.Tensor]:
    """Pairs 0 to 5, of six images, with random logits."""
    batch = Batches(tiny.tiny_pairs(captions=1), batch_size=6).take(np.arange(6))
    return batch, torch.randn(6, 6, generator=torch.Generator().manual_seed(1))


def decl_with_clean(clean: list[bool], **options: float) -> DECL:
    method = build_method("decl", **options)
    method.clean = torch.tensor(clean)
    return method


@pytest.mark.parametrize("warmup", [True, False])
def test_the_total_matches_the_oracle(warmup: bool) -> None:
    options = {"temperature": 0.2, "kl_weight": 0.3, "ranking_weight": 0.7, "margin": 0.25}
    method = decl_with_clean(CLEAN, hardness_start=3, hardness_decay=0.5, hardness_end=1, **options)
    batch, logits = six()
    for num_hardest in (3, 2, 2, 1, 1, 1):  # floor(3 - k / 2), at least 1
        clean = [True] * 6 if warmup else CLEAN
        expected = oracle.total(logits.double().tolist(), clean, num_hardest=num_hardest, **options)
        loss = method.loss(Fixed(logits), batch, warmup=warmup)
        # float32 logits and tanh, so seven digits before the exponential
        assert loss.total.item() == pytest.approx(expected, rel=1e-5)


def test_the_hinges_of_noisy_pairs_do_not_count() -> None:
    batch, logits = six()
    some, none = (
        decl_with_clean(b, kl_weight=0.0, ranking_weight=1e6).loss(Fixed(logits), batch, warmup=False)
        for b in (CLEAN, [False] * 6)
    )
    assert some.parts["ranking"] > 0
    assert none.parts["ranking"] == 0
    assert some.report.clean.tolist() == CLEAN
    assert none.report.clean.tolist() == [False] * 6


def test_hardness_grows_with_every_update_down_to_its_end() -> None:
    method = build_method("decl")
    at = {}
    for updates in (0, 1, 40, 41, 4919, 4920, 100_000):
        method.updates.fill_(updates)
        at[updates] = int(method.num_hardest())
    # 128 - 0.025 * 1 = 127.975; at 40 exactly 127; at 41 126.975; at 4919 5.025; at 4920 exactly 5.
    assert at == {0: 128, 1: 127, 40: 127, 41: 126, 4919: 5, 4920: 5, 100_000: 5}
    method.updates.zero_()
    batch, logits = six()
    method.clean = torch.tensor(CLEAN)
    method.loss(Fixed(logits), batch, warmup=True)
    method.loss(Fixed(logits), batch, warmup=False)
    assert int(method.updates) == 2  # the warm-up counts


@pytest.mark.parametrize("decay", [0.025, 0.07, 0.15, 0.0])
def test_the_number_of_hardest_is_the_formulas_at_every_update(decay: float) -> None:
    method = build_method("decl", hardness_decay=decay)
    for updates in range(6000):
        method.updates.fill_(updates)
        assert int(method.num_hardest()) == max(math.floor(128 - decay * updates), 5)


def test_a_checkpoint_holds_the_updates_as_a_number_that_no_later_step_changes() -> None:
    batch, logits = six()
    method, other = decl_with_clean(CLEAN), decl_with_clean([True] * 6)
    method.loss(Fixed(logits), batch, warmup=False)
    state = method.state_dict()
    assert (state["updates"].dtype, state["updates"].shape) == (torch.int64, ())
    other.load_state_dict(state)
    for each in (method, other):
        each.loss(Fixed(logits), batch, warmup=False)
    assert [int(each.updates) for each in (method, other)] == [2, 2]
    assert int(state["updates"]) == 1


def test_less_than_the_hardest_candidate_is_refused() -> None:
    with pytest.raises(ValueError, match="hardness_end must be at least 1, the hardest candidate; got 0"):
        build_method("decl", hardness_end=0)


def test_the_warm_up_divides_nothing_and_later_epochs_in_evaluation_mode_without_gradients() -> None:
    trainer = tiny.tiny_trainer(method="decl")
    method, matcher = trainer.method, trainer.matcher
    seen = []
    matcher.register_forward_hook(lambda *_: seen.append((matcher.training, torch.is_grad_enabled())))
    method.start(trainer.context())
    matcher.train()
    method.begin_epoch(0, warmup=True)
    assert method.clean.all()
    assert seen == []
    method.begin_epoch(2, warmup=False)
    assert set(seen) == {(False, False)}
    assert matcher.training
    assert 0 < method.clean.float().mean() < 1


def test_the_division_finds_planted_noise_and_goes_round_every_pair() -> None:
    clean = tiny.tiny_pairs(num_images=200)
    is_noisy = torch.from_numpy(make_noise(clean.image_of_text, rate=0.3, seed=1).is_noisy)
    # The tiny model's logits are cosines times ten, of which the tanh saturates; ten times the published numbers.
    options = {"similarity": "logit", "temperature": 1.0, "margin": 2.0, "ranking_weight": 0.08}
    trainer = tiny.tiny_trainer(
        method="decl", pairs=clean, epochs=4, decay_after=4, learning_rate=1e-2, method_options=options
    )
    trainer.run()
    clean = trainer.method.clean
    for all_before in (False, True):
        clean[:] = all_before
        trainer.method.begin_epoch(9, warmup=False)
        assert clean[~is_noisy].float().mean() > 0.8
        assert clean[is_noisy].float().mean() < 0.05


def test_logits_can_be_the_similarity() -> None:
    batch, logits = six()
    by_tanh = decl_with_clean(CLEAN).loss(Fixed(logits), batch, warmup=False)
    by_logit = decl_with_clean(CLEAN, similarity="logit").loss(Fixed(logits.tanh()), batch, warmup=False)
    assert by_logit.total == by_tanh.total


@pytest.mark.parametrize("masked", [True, False])
def test_another_caption_of_the_same_image_does_not_win_against_a_pair(masked: bool) -> None:
    """Pairs 0 and 1 share their image, which likes text 1 better than text 0."""

    class FixedNetwork(torch.nn.Module):
        def forward(self, batch: Batch) -> torch.Tensor:
            logits = torch.eye(6)
            logits[0, 1] = logits[1, 0] = 2.0
            return logits[batch.pair_id][:, batch.pair_id]

    image_id = torch.tensor([0, 0, 1, 2, 3, 4])
    whole = Batch(pair_id=torch.arange(6), image_id=image_id)
    method = build_method("decl", similarity="logit", mask_repeated_images=masked)
    method.start(TrainingContext(6, torch.device("cpu"), FixedNetwork(), lambda round_: iter([whole])))
    method.begin_epoch(1, warmup=False)
    assert method.clean.tolist() == [masked, masked, True, True, True, True]
