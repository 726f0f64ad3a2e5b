"""SREM-plus as a module: the method's numbers, ids of any kind, exact resume."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sremkit import SREMPlus
from sremkit.data.batch import Batch
from sremkit.methods import TrainingContext, build_method

NUM_PAIRS, BATCH = 160, 16


def batches(epoch: int, margin: float = 5.0) -> list[tuple[Tensor, Tensor]]:
    """Logits and pair ids of an epoch: every fourth pair is wrong, so its logit is like those of the others."""
    g = torch.Generator().manual_seed(epoch)
    order = torch.randperm(NUM_PAIRS, generator=g).split(BATCH)
    return [(torch.randn(len(ids), len(ids), generator=g) + torch.diag(margin * (ids % 4 > 0)), ids) for ids in order]


def train(criterion: SREMPlus, epochs: range, *, names=lambda ids: ids) -> list[Tensor]:
    """Two epochs of warm-up, then training; all losses."""
    losses = []
    for epoch in epochs:
        for logits, ids in batches(epoch):
            losses.append(criterion(logits, names(ids), warmup=epoch < 2).total)
        criterion.finish_epoch()
    return losses


def test_the_module_computes_what_the_method_computes() -> None:
    method = build_method("srem-plus")
    method.start(TrainingContext(NUM_PAIRS, torch.device("cpu")))
    expected = []
    for epoch in range(4):
        method.begin_epoch(epoch, warmup=epoch < 2)
        for logits, ids in batches(epoch):
            expected.append(method.loss(lambda _, f=logits: f, Batch(ids, ids), warmup=epoch < 2).total)
        method.finish_epoch()
    criterion = SREMPlus(NUM_PAIRS)
    assert torch.equal(torch.stack(train(criterion, range(4))), torch.stack(expected))
    assert torch.equal(criterion.clean_prob(), method.clean_prob)
    is_wrong = torch.arange(NUM_PAIRS) % 4 == 0
    assert criterion.clean_prob()[is_wrong].mean() < 0.3 < 0.9 < criterion.clean_prob()[~is_wrong].mean()


def test_the_memory_of_a_pair_by_hand() -> None:
    criterion = SREMPlus(5, decay=0.75, min_mismatch_ratio=0.0)
    # Both directions have the logits (0, 0) and (log 3, 0): probabilities 1/2 and 3/4.
    criterion(torch.zeros(2, 2), torch.tensor([3, 1]), warmup=True)
    three = math.log(3.0)
    criterion(torch.tensor([[three, 0.0], [0.0, three]]), torch.tensor([3, 4]), warmup=True)
    memory = criterion.state_dict()["memory"]
    assert memory[[0, 2]].isnan().all()
    # logit(1/2) = 0 and logit(3/4) = log 3
    torch.testing.assert_close(memory[[1, 3, 4]], torch.tensor([0.0, 0.25 * three, three]))


def test_ids_of_any_kind_and_number_give_the_same() -> None:
    by_row, by_name = SREMPlus(NUM_PAIRS), SREMPlus()
    wanted = train(by_row, range(4))
    got = train(by_name, range(4), names=lambda ids: [f"{k}.jpg" if k % 2 else 10**15 + k for k in ids.tolist()])
    assert torch.equal(torch.stack(got), torch.stack(wanted))
    every_tenth = range(1, NUM_PAIRS, 10)
    assert torch.equal(
        by_name.clean_prob([f"{k}.jpg" for k in every_tenth]), by_row.clean_prob(torch.arange(1, 160, 10))
    )


def test_the_memory_grows_and_keeps_what_it_holds() -> None:
    criterion = SREMPlus()
    ids = torch.arange(5000).view(-1, 100) + 7 * 10**12
    for some in ids:
        criterion(torch.eye(100), some, warmup=True)
    assert criterion.clean_prob().shape == (5000,)
    before = criterion.state_dict()["memory"][:5000].clone()
    assert not before.isnan().any()
    criterion(torch.eye(100), ids[0] - 1, warmup=True)  # one new id, 99 known ones
    assert len(criterion.clean_prob()) == 5001


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_module_goes_on_exactly(tmp_path: Path, stop: int, keyed: bool) -> None:
    def fresh() -> SREMPlus:
        return SREMPlus() if keyed else SREMPlus(NUM_PAIRS)

    whole, stopped, resumed = fresh(), fresh(), fresh()
    expected = train(whole, range(5))
    train(stopped, range(stop))
    if stop % 2:
        save_file(dict(stopped.state_dict()), tmp_path / "state.safetensors")
        state = load_file(tmp_path / "state.safetensors")
    else:
        torch.save(stopped.state_dict(), tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed.load_state_dict(state)
    rest = train(resumed, range(stop, 5))
    assert torch.equal(torch.stack(rest), torch.stack(expected[-len(rest) :]))
    assert torch.equal(resumed.clean_prob(), whole.clean_prob())


def test_the_state_is_part_of_a_larger_modules() -> None:
    outer, other = (torch.nn.ModuleDict({"loss": SREMPlus(NUM_PAIRS)}) for _ in range(2))
    train(outer["loss"], range(3))
    assert "loss.memory" in outer.state_dict()
    other.load_state_dict(outer.state_dict())
    assert torch.equal(other["loss"].clean_prob(), outer["loss"].clean_prob())


def test_the_warm_up_reports_when_it_suffices() -> None:
    criterion = SREMPlus(NUM_PAIRS)
    ready, messages = [], []
    for epoch, margin in enumerate((0.0, 0.5, 5.0)):  # accuracies around 1/16, 1/8 and 3/4
        for logits, ids in batches(epoch, margin):
            criterion(logits, ids, warmup=True)
        criterion.finish_epoch()
        ready.append(criterion.is_ready())
        messages.append(criterion.message())
    assert ready == [False, False, True]  # at sqrt(1/16), half-way from chance to 1 on a logarithmic scale
    assert all("at least 25 % needed (chance 6.2 %)" in message for message in messages[:2])
    assert re.search(r"in-batch accuracy 7\d %", messages[2])


def test_captions_of_one_image_are_not_negatives() -> None:
    logits, ids = batches(0)[0]
    same = torch.zeros(BATCH, dtype=torch.long)
    assert SREMPlus(NUM_PAIRS)(logits, ids, image_ids=same).parts["cross_entropy"] == 0.0
    assert SREMPlus(NUM_PAIRS)(logits, ids).parts["cross_entropy"] > 0.1


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        (torch.tensor([0, 160]), "between 0 and 159, got 0 to 160"),
        (torch.tensor([-1, 3]), "got -1 to 3"),
        (torch.tensor([1, 2, 3]), "each of the 2 pairs, got 3"),
        (torch.tensor([0.0, 1.0]), "one integer for each pair"),
    ],
)
def test_wrong_ids_get_a_sentence(ids: Tensor, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        SREMPlus(NUM_PAIRS)(torch.eye(2), ids)


def test_wrong_settings_get_a_sentence() -> None:
    with pytest.raises(TypeError, match="re-matching needs the collection"):
        SREMPlus(10, rematch_top_k=3)
    with pytest.raises(ValueError, match="at least 1"):
        SREMPlus(0)
    keyed = SREMPlus()
    keyed(torch.eye(2), ["a", "b"])
    with pytest.raises(ValueError, match="a module with no num_pairs; here num_pairs is 160"):
        SREMPlus(NUM_PAIRS).load_state_dict(keyed.state_dict())
    with pytest.raises(ValueError, match="with num_pairs=160; here num_pairs is 10"):
        SREMPlus(10).load_state_dict(SREMPlus(NUM_PAIRS).state_dict())
