"""Methods that say that their steps can be captured: no step waits for the device, and a replay is a step."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from methods.replaying import (
    DEVICE,
    SIZE,
    HostWaitsError,
    batch_number,
    check_it_never_waits,
    losses_and_memory,
    refusing_to_wait,
    stand_in_for_a_device,
    started,
)
from small_models import small_matcher
from sremkit.config.recipes import TrainingSettings
from sremkit.data import Batches
from sremkit.methods import METHODS, Method, build_method
from sremkit.methods.common.co_teaching import CoTeaching
from sremkit.methods.mscn import random_pairs
from sremkit.models import WRAPPERS
from sremkit.training.trainer import Trainer
from training import tiny

#: Options that change what a step computes, in addition to each registered method as it is.
VARIANTS: dict[str, dict[str, Any]] = {
    "ncr": {"noisy_after": 0, "margin_shape": "sine"},
    "bicro": {"noisy_after": 0, "similarity": "logit", "mask_repeated_images": False},
    "decl": {"hardness_start": 9, "hardness_decay": 0.7, "hardness_end": 2, "mask_repeated_images": False},
    "srem": {"complementary": False, "mask_repeated_images": False},
    "srem-plus": {"sharpness": 1.0, "temperature": 0.5},
}
SUPPORTING = [name for name in METHODS if METHODS[name].supports_cuda_graphs]
OTHERS = [name for name in METHODS if name not in SUPPORTING]
#: Methods that split all pairs between epochs.
SPLITTING = [name for name in SUPPORTING if hasattr(build_method(name), "clean")]
CASES = [(name, {}) for name in SUPPORTING] + list(VARIANTS.items())


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_method_with_support_never_waits_for_the_device(name: str, options: dict) -> None:
    check_it_never_waits(build_method(name, **options))


def scan_all(method: Method) -> None:
    """What a split computes for every batch, without the mixture, which is fitted once per epoch."""
    if isinstance(method, CoTeaching):
        method._scan_losses(0)
    else:
        method.begin_epoch(0, warmup=False)


@pytest.mark.parametrize("name", SPLITTING)
def test_no_batch_of_a_pass_over_all_pairs_waits_for_the_device(name: str) -> None:
    with stand_in_for_a_device():
        _, method = started(build_method(name), DEVICE)
        passes = []
        batches = [batch_number(k).to(DEVICE) for k in range(3)]
        method.scan_pairs = lambda round_: passes.append(round_) or iter(batches)
        with refusing_to_wait():
            scan_all(method)
    assert passes == [0]


def test_what_mscn_compares_in_every_batch_does_not_wait_for_the_device() -> None:
    logits, image_id = torch.empty(2, SIZE, SIZE, device=DEVICE), torch.empty(SIZE, device=DEVICE)
    with refusing_to_wait():
        scores, is_other = random_pairs(logits, image_id)
    assert (scores.shape, is_other.shape) == ((2, SIZE), (SIZE,))


@pytest.mark.parametrize("warmup", [True, False], ids=["warm-up", "later"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_replayed_step_equals_an_eager_step(name: str, options: dict, warmup: bool) -> None:
    usual = losses_and_memory(build_method(name, **options), warmup=warmup, replayed=False)
    found = losses_and_memory(build_method(name, **options), warmup=warmup, replayed=True)
    torch.testing.assert_close(found, usual, rtol=0, atol=0, equal_nan=True)
    assert len({loss.item() for loss in usual[0]}) == 8  # else a tape that stands still would do


@pytest.mark.parametrize("name", OTHERS)
def test_a_method_without_support_waits_for_the_device(name: str) -> None:
    """Else it could say that it supports CUDA graphs."""
    with pytest.raises(HostWaitsError):
        check_it_never_waits(build_method(name), warmups=(False,))


def test_there_are_methods_of_each_kind() -> None:
    assert SUPPORTING
    assert OTHERS
    assert SPLITTING


@pytest.mark.parametrize(("backbone", "supports_cuda_graphs"), [("dual", True), ("imram", True), ("clip", False)])
def test_two_networks_support_cuda_graphs_where_one_can(backbone: str, supports_cuda_graphs: bool) -> None:
    member = small_matcher(backbone)
    assert member.supports_cuda_graphs is supports_cuda_graphs
    for method, expected in (("ncr", supports_cuda_graphs), ("mscn", False)):
        twins = METHODS[method].model(member.name, **member.options)
        assert deepcopy(twins).supports_cuda_graphs is twins.supports_cuda_graphs is expected
    assert WRAPPERS["two-networks"].supports_cuda_graphs is False  # unknown for two networks in general


class Losses:
    """What a run reports: after every step the epoch's mean so far."""

    def __init__(self) -> None:
        self.means: list[float] = []

    def step(self, epoch: int, step: int, steps: int, means: dict[str, float]) -> None:
        self.means.append(means.get("loss", 0.0))

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def losses_of_a_run(name: str, device: torch.device, *, graphed: bool) -> tuple[list[float], Trainer]:
    """Seven epochs of four steps, three of them warm-up; doubtful pairs are learned from in the last two."""
    settings = TrainingSettings(
        epochs=4, warmup_epochs=3, decay_after=4, batch_size=SIZE, learning_rate=1e-2, cuda_graphs=graphed,
        precision="float32",
    )  # fmt: skip
    options: dict[str, Any] = {"noisy_after": 2} if METHODS[name].networks == 2 else {}
    if name == "decl":
        options = {"hardness_start": 20, "hardness_decay": 0.8}
    method, losses = build_method(name, **options), Losses()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        matcher = method.model("dual", image_dim=12, text_dim=8, hidden_size=16, embed_size=8, dropout=0.0)
    batches = Batches(tiny.tiny_pairs(), batch_size=SIZE)
    trainer = Trainer(matcher, method, batches, settings, device=device, reporter=losses)
    trainer.run()
    return losses.means, trainer


@pytest.mark.parametrize("name", SPLITTING)
def test_the_run_that_graphs_are_compared_with_divides_its_pairs(name: str) -> None:
    losses, trainer = losses_of_a_run(name, torch.device("cpu"), graphed=False)
    assert len(losses) == 7 * 4
    assert np.isfinite(losses).all()
    division = trainer.method.clean
    assert 0 < division.float().mean() < 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")
@pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::UserWarning:torch")
@pytest.mark.parametrize("name", [*SPLITTING, "crcl", "gsc"])
def test_a_run_with_cuda_graphs_equals_the_eager_run(name: str) -> None:
    eager, eager_run = losses_of_a_run(name, torch.device("cuda"), graphed=False)
    found, replayed = losses_of_a_run(name, torch.device("cuda"), graphed=True)
    graphed = replayed.run_step.graphed
    assert graphed is not None
    assert graphed._graphs
    # Sums in another order differ in the seventh digit, and training makes more of it.
    np.testing.assert_allclose(found, eager, rtol=1e-3, atol=0)
    if name == "decl":
        assert int(replayed.method.updates) == int(eager_run.method.updates) == len(found)
