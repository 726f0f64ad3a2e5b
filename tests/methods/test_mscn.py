"""MSCN as a method: which pairs each network learns from, with which margins, and who moves the meta-network."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from oracles import mscn as oracle
from sremkit.data import Batches, make_noise
from sremkit.data.batch import Batch
from sremkit.methods import TrainingContext, build_method, mscn
from sremkit.methods.mscn import MSCN, MetaLoss, margin_factor, random_pairs
from sremkit.objectives.triplet import triplet
from training import tiny

CLEAN = torch.tensor(
    [[True, True, False, True, True, False, True, True], [True, False, True, True, False, True, True, False]]
)


class Fixed:
    """A matcher that always gives these logits."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def __call__(self, batch: object) -> torch.Tensor:
        return self.logits


class WithoutMeta(MSCN):
    """Ranks fixed logits without meta-steps."""

    def _meta_parameters(self):
        return iter(())

    def _meta_step(self, batch: Batch) -> torch.Tensor:
        return torch.zeros(())


def eight() -> tuple[Batch, torch.Tensor]:
    """Eight pairs of seven images, the first two of one image, and logits of two networks."""
    batch = Batches(tiny.tiny_pairs(), batch_size=8).take(np.array([0, 1, 2, 4, 6, 8, 10, 12]))
    batch = type(batch)(**{**vars(batch), "pair_id": torch.arange(8)})
    logits = torch.randn(2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    logits = logits + torch.eye(8)
    logits[1, 0, 1] = 4.0  # the second network sees that pairs 0 and 1 are of one image
    return batch, logits


def loss_of(logits: torch.Tensor, batch: Batch, **options: float) -> torch.Tensor:
    method = WithoutMeta(**options)
    method.clean = CLEAN
    return method.loss(Fixed(logits), batch, warmup=False).total


def expected_loss(logits: torch.Tensor, batch: Batch, margin: float = 0.2) -> float:
    image_id = batch.image_id.tolist()
    return sum(oracle.ranking(logits[k].tolist(), CLEAN[1 - k].tolist(), margin, image_id) for k in (0, 1))


def test_each_network_ranks_the_pairs_that_the_other_one_selected_with_their_own_margins() -> None:
    batch, logits = eight()
    assert loss_of(logits, batch).item() == pytest.approx(expected_loss(logits, batch), rel=1e-10)
    assert loss_of(logits, batch, margin=0.5).item() == pytest.approx(expected_loss(logits, batch, 0.5), rel=1e-10)


def _own_selection(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    return loss_of(logits.flip(0), batch)


def _margins(logits: torch.Tensor) -> torch.Tensor:
    return 0.2 * margin_factor(logits.diagonal())


def _columns_margins(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """What the public code does: a margin a_j stands in c_ij of image i too."""
    total = logits.new_zeros(())
    for k in (0, 1):
        rows = CLEAN[1 - k].nonzero().squeeze(1)
        f = logits[k][rows][:, rows]
        s, a = f.sigmoid(), _margins(f)
        same = batch.image_id[rows][:, None] == batch.image_id[rows]
        c = (a[None, :] + s - s.diagonal()[:, None]).relu().masked_fill(same, 0.0)
        d = (a[None, :] + s - s.diagonal()[None, :]).relu().masked_fill(same, 0.0)
        total = total + c.max(1).values.sum() + d.max(0).values.sum()
    return total


def _all_as_negatives(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    valid = (batch.image_id[:, None] != batch.image_id) | torch.eye(8, dtype=torch.bool)
    hinges = [
        triplet(f.sigmoid(), margin=_margins(f), reduction="hardest", valid=valid)[CLEAN[1 - k]].sum()
        for k, f in enumerate(logits)
    ]
    return hinges[0] + hinges[1]


TWINS = {
    "its own selection": _own_selection,
    "the margin of the negative": _columns_margins,
    "all pairs are negatives": _all_as_negatives,
    "repeated images are negatives": lambda f, b: loss_of(f, b, mask_repeated_images=False),
    "all negatives": lambda f, b: loss_of(f, b, negatives="mean"),
    "hinges of logits": lambda f, b: loss_of(f, b, similarity="logit"),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_wrong_twins_are_rejected(twin) -> None:
    batch, logits = eight()
    assert twin(logits, batch).item() != pytest.approx(expected_loss(logits, batch), rel=1e-6)


def test_margins_are_constants_for_the_gradient() -> None:
    """With a gradient a loss could be lowered by lowering a pair's score."""
    batch, logits = eight()
    leaf = logits.clone().requires_grad_()
    loss_of(leaf, batch).backward()
    again = logits.clone().requires_grad_()
    total = again.new_zeros(())
    for k in (0, 1):
        rows = CLEAN[1 - k].nonzero().squeeze(1)
        valid = (batch.image_id[rows][:, None] != batch.image_id[rows]) | torch.eye(len(rows), dtype=torch.bool)
        f = again[k][rows][:, rows]
        margin = _margins(logits[k][rows][:, rows])
        total = total + triplet(f.sigmoid(), margin=margin, reduction="hardest", valid=valid).sum()
    total.backward()
    torch.testing.assert_close(leaf.grad, again.grad, rtol=1e-12, atol=0)


def test_the_corrected_margin_by_hand_and_by_the_formula() -> None:
    # p = 1/2: 1 / (1 + 1) = 1/2; p = 3/4: 1 / (1 + 3^-2) = 9/10; p = 1/4: 1 / (1 + 9) = 1/10.
    p = torch.tensor([0.5, 0.75, 0.25], dtype=torch.float64)
    assert margin_factor(p.logit()).tolist() == pytest.approx([0.5, 0.9, 0.1], rel=1e-12)
    for value in (0.01, 0.3, 0.8, 0.999):
        got = margin_factor(torch.tensor(value, dtype=torch.float64).logit()).item()
        assert got == pytest.approx(oracle.soft_margin(value, 1.0), rel=1e-10)
    assert margin_factor(torch.tensor([-500.0, 500.0])).tolist() == [0.0, 1.0]  # where p rounds to 0 or 1


def test_without_selected_pairs_the_loss_is_0_with_a_graph() -> None:
    batch, logits = eight()
    method = WithoutMeta()
    method.clean = torch.zeros(2, 8, dtype=torch.bool)
    leaf = logits.clone().requires_grad_()
    total = method.loss(Fixed(leaf), batch, warmup=False).total
    total.backward()
    assert total == 0
    assert (leaf.grad == 0).all()


def test_the_warm_up_ranks_every_pair_by_the_mean_hinge() -> None:
    batch, logits = eight()
    method = WithoutMeta(mask_repeated_images=False)
    method.clean = CLEAN
    expected = sum(triplet(f.sigmoid(), margin=0.2, reduction="mean").sum() for f in logits)
    torch.testing.assert_close(method.loss(Fixed(logits), batch, warmup=True).total, expected)


def test_random_pairs_by_hand() -> None:
    # Images 5, 5, 7: 0 with 1 is one image and does not count; 1 with 2 and 2 with 0 are wrong pairs.
    scores = torch.arange(9.0).view(3, 3)
    found, is_other = random_pairs(scores, torch.tensor([5, 5, 7]))
    assert found.tolist() == [1.0, 5.0, 6.0]
    assert is_other.tolist() == [False, True, True]
    both, is_other = random_pairs(torch.stack([scores, scores + 9]), torch.tensor([5, 5, 7]))
    assert both.tolist() == [[1.0, 5.0, 6.0], [10.0, 14.0, 15.0]]
    assert is_other.tolist() == [False, True, True]
    assert random_pairs(scores[:1, :1], torch.tensor([5]))[1].tolist() == [False]


def test_mismatched_examples_are_all_neighbours_of_other_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = tiny.tiny_trainer(method="mscn")
    method, matcher = trainer.method, trainer.matcher
    method.start(trainer.context())
    seen = []

    def note(given: torch.Tensor, *, matched: torch.Tensor, mismatched: torch.Tensor) -> torch.Tensor:
        seen.append(mismatched)
        return torch.ones_like(given)

    monkeypatch.setattr("sremkit.methods.mscn.seeded_match_probability", note)
    method.begin_epoch(5, warmup=False)
    matcher.eval()
    left_out = 0
    for k, network in enumerate(matcher.networks()):
        expected = []
        for batch in trainer.batches.every_pair(5):
            scores, n = network(batch).detach().sigmoid(), len(batch)
            for i in range(n):
                if batch.image_id[i] != batch.image_id[(i + 1) % n]:
                    expected.append(scores[i, (i + 1) % n].item())
                else:
                    left_out += 1
        assert seen[k].tolist() == pytest.approx(expected, rel=1e-6)  # float32 logits
    assert left_out > 0  # else the same would come of all neighbours


def test_meta_loss_by_hand() -> None:
    # Right pairs have the logit 0, wrong ones ln 3: (ln 2 + ln 2 + ln 4 + ln 4) / 4.
    batch = Batches(tiny.tiny_pairs(captions=1), batch_size=2).take(np.array([0, 1]))
    meta_loss = MetaLoss(batch, batch)
    logits = torch.tensor([[0.0, math.log(3)], [math.log(3), 0.0]])
    assert meta_loss(Fixed(logits)).item() == pytest.approx(1.5 * math.log(2), rel=1e-6)
    # Images 0, 0, 1: the first image with the second text is no wrong pair, whatever its logit.
    # (3 ln 2 + 2 ln 4) / 5.
    batch = Batches(tiny.tiny_pairs(captions=2), batch_size=3).take(np.array([0, 1, 2]))
    logits = torch.full((3, 3), math.log(3)).fill_diagonal_(0.0)
    logits[0, 1] = 50.0
    assert MetaLoss(batch, batch)(Fixed(logits)).item() == pytest.approx(1.4 * math.log(2), rel=1e-6)


def test_without_trusted_pairs_it_does_not_start() -> None:
    trainer = tiny.tiny_trainer(method="mscn")
    given = trainer.context()
    with pytest.raises(ValueError, match="MSCN needs trusted pairs"):
        build_method("mscn").start(TrainingContext(given.num_pairs, given.device, given.matcher, given.scan_pairs))
    with pytest.raises(ValueError, match="meta_batch must be at least 2"):
        build_method("mscn", meta_batch=1)
    with pytest.raises(ValueError, match="meta_interval must be at least 1, got 0"):
        build_method("mscn", meta_interval=0)


def meta_weights(trainer) -> dict[str, torch.Tensor]:
    state = trainer.matcher.state_dict()
    return {key: value.clone() for key, value in state.items() if "meta_network" in key}


def test_the_meta_network_is_moved_by_trusted_pairs_alone_once_the_warm_up_is_over() -> None:
    """A meta-rate of 0 switches its own optimiser off; what then still moved it would be the training's."""
    for rate in (0.0, 1e-3):
        trainer = tiny.tiny_trainer(method="mscn", method_options={"meta_rate": rate})
        trainer.method.start(trainer.context())
        batch = trainer.batches.take(np.arange(0, 96, 6))
        start = meta_weights(trainer)
        trainer._update(batch)
        warm = meta_weights(trainer)
        assert all(not torch.equal(start[key], warm[key]) for key in start if "weight" in key)
        trainer.position.epoch = trainer.settings.warmup_epochs
        backbone = trainer.matcher.networks()[0].backbone.image_tower.layers[1].weight.clone()
        trainer._update(batch)
        after = meta_weights(trainer)
        assert not torch.equal(backbone, trainer.matcher.networks()[0].backbone.image_tower.layers[1].weight)
        assert all(torch.equal(warm[key], after[key]) == (rate == 0) for key in warm)


def test_a_meta_interval_of_three_makes_every_third_update_a_meta_step() -> None:
    trainer = tiny.tiny_trainer(method="mscn", method_options={"meta_interval": 3})
    trainer.method.start(trainer.context())
    trainer.position.epoch = trainer.settings.warmup_epochs
    batch = trainer.batches.take(np.arange(0, 96, 6))
    moved = []
    for _ in range(7):
        before = meta_weights(trainer)
        trainer._update(batch)
        after = meta_weights(trainer)
        moved.append(
            not torch.equal(
                before["members.0.meta_network.output.weight"], after["members.0.meta_network.output.weight"]
            )
        )
    assert moved == [True, False, False, True, False, False, True]
    assert int(trainer.method.state_dict()["updates"]) == 7


def test_adam_s_memory_and_both_selections_are_in_its_state() -> None:
    trainer = tiny.tiny_trainer(method="mscn", epochs=1)
    trainer.run()
    state = trainer.method.state_dict()
    assert state["clean"].shape == (2, 96)
    # four tensors of a meta-network, two networks, three memories each
    assert sum(name.startswith("adam/") for name in state) == 4 * 2 * 3


def test_the_two_selections_find_planted_noise() -> None:
    clean = tiny.tiny_pairs(num_images=200)
    is_noisy = torch.from_numpy(make_noise(clean.image_of_text, rate=0.3, seed=1).is_noisy)
    trainer = tiny.tiny_trainer(
        method="mscn", pairs=clean, epochs=2, warmup_epochs=6, decay_after=8, learning_rate=1e-2
    )
    trainer.run()
    for kept in trainer.method.clean:
        assert kept[~is_noisy].float().mean() > 0.6
        assert kept[is_noisy].float().mean() < 0.3
    assert not torch.equal(*trainer.method.clean)


def test_the_virtual_step_of_each_network_learns_from_what_the_other_one_selected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the real step does; a step on its own selection would confirm itself."""
    batch, logits = eight()
    trainer = tiny.tiny_trainer(method="mscn")
    method = trainer.method
    method.start(trainer.context())
    method.clean[:, :8] = CLEAN
    seen: list[float] = []
    networks = trainer.matcher.networks()
    gradients = mscn.meta_gradients

    def spied(network, ranking, meta_loss, **options):
        seen.append(ranking(Fixed(logits[networks.index(network)])).item())
        return gradients(network, ranking, meta_loss, **options)

    monkeypatch.setattr(mscn, "meta_gradients", spied)
    method._meta_step(batch)
    image_id = batch.image_id.tolist()
    by_the_other, by_itself = (
        [oracle.ranking(logits[k].tolist(), CLEAN[by].tolist(), 0.2, image_id) for k, by in turns]
        for turns in (((0, 1), (1, 0)), ((0, 0), (1, 1)))
    )
    assert seen == pytest.approx(by_the_other, rel=1e-10)
    assert by_the_other != pytest.approx(by_itself, rel=1e-3)
