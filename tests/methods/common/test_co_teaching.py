"""What NCR and BiCro share: the split by the peer, the negatives, and the state."""

from __future__ import annotations

import math

import pytest
import torch

from methods.fixed_networks import Stage, batch_of
from oracles import triplet as oracle
from sremkit.methods import METHODS as REGISTRY
from sremkit.methods.common.co_teaching import CoTeaching, Strongest, best_tenth, match_strength

METHODS = [name for name in REGISTRY if getattr(REGISTRY[name], "loss", None) is CoTeaching.loss]


@pytest.mark.parametrize("name", METHODS)
def test_each_network_is_trained_on_the_other_ones_split(name: str) -> None:
    stage = Stage(name)
    all_pairs = torch.ones(2, stage.n, dtype=torch.bool)
    none_by_second = all_pairs.clone()
    none_by_second[1] = False
    stage.set_split(none_by_second, torch.ones(2, stage.n, dtype=torch.float64))
    trained = stage.trained.clone().requires_grad_()
    stage.total(trained=trained).backward()
    assert (trained.grad[0] == 0).all()  # the second selects no pair for the first
    assert (trained.grad[1] != 0).any()


@pytest.mark.parametrize("name", METHODS)
def test_noisy_pairs_are_not_used_before_noisy_after(name: str) -> None:
    stage = Stage(name, noisy_after=3)
    clean = stage.method.clean
    for num_splits, used in ((3, False), (4, True)):
        stage.set_split(clean, stage.method.probability, num_splits)
        trained = stage.trained.clone().requires_grad_()
        stage.total(trained=trained).backward()
        own = trained.grad.diagonal(dim1=1, dim2=2)  # (2, n)
        by_peer = clean.flip(0)
        assert (own[by_peer] != 0).any()
        assert bool((own[~by_peer] != 0).any()) is used
        across = by_peer[:, :, None] != by_peer[:, None, :]
        assert (trained.grad[across] == 0).all()  # no clean pair is a noisy one's negative, nor the reverse


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_without_clean_or_without_noisy_pairs_gives_a_finite_loss(name: str) -> None:
    stage = Stage(name, noisy_after=0)
    for side in (torch.zeros, torch.ones):
        stage.set_split(side(2, stage.n, dtype=torch.bool), torch.full((2, stage.n), 0.5, dtype=torch.float64))
        trained = stage.trained.clone().requires_grad_()
        total = stage.total(trained=trained)
        total.backward()
        assert torch.isfinite(total)
        assert torch.isfinite(trained.grad).all()


@pytest.mark.parametrize("name", METHODS)
def test_the_networks_are_looked_at_in_evaluation_mode_and_put_back(name: str) -> None:
    stage = Stage(name)
    stage.twins.train()
    stage.total()
    stage.method.begin_epoch(0, warmup=False)
    modes = [mode for network in stage.twins.networks() for mode in network.modes]
    assert modes
    assert not any(modes)
    assert all(part.training for part in stage.twins.modules())


def test_every_pair_is_scored_once_by_its_mean_hinges() -> None:
    stage = Stage("ncr", margin=0.3)
    found = stage.method._scan_losses(7)
    for batch in stage._every_pair(7):
        rows = batch.pair_id
        for network in (0, 1):
            s = stage.seen[network][rows][:, rows].sigmoid()
            expected = oracle.triplet(s.tolist(), [0.3] * len(rows), "mean")
            assert found[network, rows].tolist() == pytest.approx(expected, rel=1e-6)  # kept as float32


@pytest.mark.parametrize(("name", "options"), [("ncr", {}), ("bicro", {}), ("bicro", {"mixture": "normal"})], ids=str)
def test_a_division_finds_the_pairs_that_lose(name: str, options: dict) -> None:
    stage = Stage(name, n=200, **options)
    wrong = torch.arange(200) % 3 == 0
    for network in stage.twins.networks():
        # Differently hard, as real pairs are; wrong ones score like any negative.
        strength = torch.linspace(3, 6, 200, dtype=torch.float64)
        network.logits = torch.randn(200, 200, generator=torch.Generator().manual_seed(1)).double()
        network.logits[~wrong, ~wrong] += strength[~wrong]
        network.logits[wrong, wrong] -= 1
    stage.method.begin_epoch(0, warmup=True)
    assert stage.method.num_splits == 1  # the stage's own: the warm-up divides nothing
    stage.method.begin_epoch(1, warmup=False)
    assert stage.method.num_splits == 2
    for clean in stage.method.clean:
        assert (clean == ~wrong).float().mean() > 0.9


def test_a_mixture_gets_losses_from_0_to_1() -> None:
    stage = Stage("ncr", similarity="logit", margin=5.0)
    seen: list[torch.Tensor] = []
    stage.method.clean_posterior = lambda losses: seen.append(losses) or torch.rand_like(losses)
    stage.method.begin_epoch(0, warmup=False)
    assert [(losses.min().item(), losses.max().item()) for losses in seen] == [(0.0, 1.0)] * 2


@pytest.mark.parametrize("name", METHODS)
def test_a_mixture_without_clean_pairs_leaves_the_split_as_it_was(name: str) -> None:
    """On bell-shaped losses the betas can do so; then nothing would ever be learnt again."""
    stage = Stage(name)
    before = stage.method.clean.clone(), stage.method.probability.clone()
    stage.method.clean_posterior = lambda losses: torch.full_like(losses, 0.4)
    stage.method.begin_epoch(0, warmup=False)
    assert torch.equal(stage.method.clean, before[0])
    assert torch.equal(stage.method.probability, before[1])
    assert stage.method.num_splits == 2


def test_the_warm_up_is_the_sum_of_both_networks_mean_hinges() -> None:
    stage = Stage("ncr")
    expected = sum(math.fsum(oracle.triplet(f.sigmoid().tolist(), [0.2] * stage.n, "mean")) for f in stage.trained)
    assert stage.total(warmup=True).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_captions_of_one_image_are_masked_by_default(name: str) -> None:
    def totals(**options: bool) -> list[float]:
        stage = Stage(name, noisy_after=0, **options)
        stage.batch = batch_of(stage.n, [0, 0, *range(2, stage.n)])
        stage.set_split(torch.ones_like(stage.method.clean), stage.method.probability)
        high = stage.trained.clone()
        high[:, 0, 1] = high[:, 1, 0] = 9.0
        return [stage.total(trained=logits).item() for logits in (stage.trained, high)]

    same, unequal = totals(), totals(mask_repeated_images=False)
    assert same[0] == same[1]
    assert unequal[0] < unequal[1]


@pytest.mark.parametrize("name", METHODS)
def test_a_checkpoint_holds_all_that_a_division_made(name: str) -> None:
    stage, other = Stage(name, noisy_after=1), Stage(name, noisy_after=1)
    stage.set_split(stage.method.clean.flip(1), stage.method.probability.flip(1), num_splits=2)
    assert other.total() != stage.total()
    other.method.load_state_dict({key: value.clone() for key, value in stage.method.state_dict().items()})
    assert other.total() == stage.total()
    assert stage.method.state_dict()["num_splits"].dtype == torch.int64  # as it always was in checkpoints
    assert type(other.method.num_splits) is int  # no step has to wait for a device to compare it


def test_strength_by_hand() -> None:
    # Margin 0.4, a pair with 0.5 against one other image at 0.3 and one other text at 0.5: hinges 0.2 and 0.4,
    # each a half after the mean over two candidates, so l = 0.3 and P = 0.4 - 0.15.
    s = torch.tensor([[0.5, 0.5], [0.3, 9.0]], dtype=torch.float64)
    valid = torch.ones(2, 2, dtype=torch.bool)
    assert match_strength(s, margin=0.4, valid=valid)[0].item() == pytest.approx(0.25)
    hopeless = torch.tensor([[-9.0, 0.5], [0.3, 9.0]], dtype=torch.float64)
    assert match_strength(hopeless, margin=0.4, valid=valid).tolist() == [0.0, 0.4]


def test_the_best_tenth_is_taken_among_the_members_and_has_one_more() -> None:
    strength = torch.arange(30.0)
    among = torch.arange(30) < 20
    assert present(best_tenth(strength, among)) == [19, 18, 17]  # 20 // 10 + 1
    assert present(best_tenth(strength, torch.zeros(30, dtype=torch.bool))) == []


def present(strongest: Strongest) -> list[int]:
    return strongest.pair[strongest.present].tolist()


def numbers_of_the_best_tenth(strength: torch.Tensor, among: torch.Tensor) -> list[int]:
    """With as many numbers as there are: the definition, in shapes that depend on the batch."""
    members = among.nonzero().squeeze(1)
    count = len(members) // 10 + 1
    return members[strength[members].argsort(descending=True, stable=True)[:count]].tolist()


@pytest.mark.parametrize("b", [1, 2, 9, 10, 11, 19, 20, 64])
def test_the_best_tenth_in_fixed_places_is_the_one_of_the_definition_in_its_order(b: int) -> None:
    generator = torch.Generator().manual_seed(b)
    counts = set()
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        for _ in range(20):
            # Many ties, at the ends of the range too, where strengths are clamped.
            strength = torch.randint(0, 5, (b,), generator=generator) / 4
            among = torch.rand(b, generator=generator) < share
            found = best_tenth(strength, among)
            assert present(found) == numbers_of_the_best_tenth(strength, among)
            assert found.pair.shape == found.present.shape == (b // 10 + 1,)
            assert len(found.pair.unique()) == len(found.pair)
            both = best_tenth(strength, torch.stack([~among, among]))  # two groups at once
            assert torch.equal(both.pair[1], found.pair)
            assert torch.equal(both.present[1], found.present)
            assert present(Strongest(both.pair[0], both.present[0])) == numbers_of_the_best_tenth(strength, ~among)
            counts.add(int(found.present.sum()))
    assert {0, 1, b // 10 + 1} <= counts  # from none to every slot
