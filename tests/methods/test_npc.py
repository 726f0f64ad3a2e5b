"""NPC as a method: its total through a virtual step, its memory, its state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from methods.fixed_networks import batch_of
from oracles import npc as oracle
from sremkit.data.batch import Batch
from sremkit.methods import TrainingContext, build_method
from sremkit.methods.npc import NPC, nearest, trusted_pairs
from sremkit.models.matcher import Encoded, Matcher
from sremkit.training.step import TrackedForward
from training import tiny

N = 7  # pairs of the batch; as many others are in its memory


class Bilinear(Matcher):
    """Logits x' W y of fixed vectors, chosen by the numbers of the pairs."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.images, self.texts = torch.randn(2, 2 * N, 3, dtype=torch.float64, generator=generator)
        self.weight = torch.nn.Parameter(torch.randn(3, 3, dtype=torch.float64, generator=generator))

    def encode_images(self, batch: Batch) -> Encoded:
        return Encoded(pooled=self.images[batch.pair_id] @ self.weight)

    def encode_texts(self, batch: Batch) -> Encoded:
        return Encoded(pooled=self.texts[batch.pair_id])

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return images.whole() @ texts.whole().T


def started(**options: float) -> tuple[NPC, Bilinear]:
    matcher = Bilinear()
    method = build_method("npc", **{"virtual_rate": 2.0, "memory_weight": 0.5, **options})

    def scan(_: int) -> Iterator[Batch]:
        for rows in torch.randperm(2 * N, generator=torch.Generator().manual_seed(1)).split(4):
            yield Batch(pair_id=rows, image_id=rows)

    take = lambda rows: Batch(pair_id=rows, image_id=rows)  # noqa: E731
    method.start(TrainingContext(2 * N, torch.device("cpu"), matcher, scan, take_pairs=take))
    method.memory = N + torch.tensor([[1, 0, 3, 2, 5, 4, 6], [2, 3, 0, 1, 6, 5, 4]])
    return method, matcher


def expected(method: NPC, matcher: Bilinear, rate: float = 2.0) -> tuple[float, list[float]]:
    tables = matcher.images.tolist(), matcher.texts.tolist(), matcher.weight.tolist()
    return oracle.total(*tables, method.memory.tolist(), rate, 0.5)


def test_the_total_and_the_weights_match_the_oracle() -> None:
    method, matcher = started()
    loss = method.loss(matcher, batch_of(N), warmup=False)
    total, weights = expected(method, matcher)
    assert loss.total.item() == pytest.approx(total, rel=1e-10)
    assert loss.report.weight.tolist() == pytest.approx(weights, rel=1e-6)  # reported in float32
    assert loss.report.clean.tolist() == [w == 1 for w in weights]
    assert 0 < weights.count(1.0) < N


def test_the_warm_up_is_infonce() -> None:
    method, matcher = started()
    losses = oracle.losses(
        oracle.logits(matcher.images[:N].tolist(), matcher.texts[:N].tolist(), matcher.weight.tolist())
    )
    assert method.loss(matcher, batch_of(N), warmup=True).total.item() == pytest.approx(sum(losses) / N, rel=1e-10)


def test_the_virtual_step_leaves_the_weights_alone_and_the_memory_has_a_gradient() -> None:
    method, matcher = started()
    before = matcher.weight.detach().clone()
    loss = method.loss(matcher, batch_of(N), warmup=False)
    assert torch.equal(matcher.weight, before)
    assert matcher.weight.grad is None
    loss.total.backward()
    whole = matcher.weight.grad.clone()
    matcher.weight.grad = None
    method.memory_weight = 0.0  # in the public code the memory's loss is computed without gradients
    method.loss(matcher, batch_of(N), warmup=False).total.backward()
    assert not torch.allclose(whole, matcher.weight.grad)


@pytest.mark.parametrize("rate", [0.0, -2.0, 20.0], ids=["no step", "step upwards", "another rate"])
def test_the_oracle_rejects_other_steps(rate: float) -> None:
    method, matcher = started()
    found = method.loss(matcher, batch_of(N), warmup=False).report.weight.tolist()
    assert found != pytest.approx(expected(method, matcher, rate)[1], rel=1e-4)


def test_swapped_memories_are_told_apart() -> None:
    method, matcher = started()
    right = method.loss(matcher, batch_of(N), warmup=False).report.weight
    method.memory[0] = method.memory[0].roll(1)
    assert not torch.allclose(method.loss(matcher, batch_of(N), warmup=False).report.weight, right)


def test_the_memory_holds_the_nearest_trusted_pairs() -> None:
    method, matcher = started()
    method.memory = method.memory[:, :0]
    method.begin_epoch(3, warmup=False)
    assert method.memory.shape == (2, 2 * N)
    trusted = set(method.memory.flatten().tolist())
    for vectors, rows in (
        (matcher.images @ matcher.weight.detach(), method.memory[0]),
        (matcher.texts, method.memory[1]),
    ):
        unit = torch.nn.functional.normalize(vectors, dim=1)
        for i in range(2 * N):
            best = max(trusted, key=lambda k: float(unit[i] @ unit[k]))
            assert float(unit[i] @ unit[rows[i]]) == pytest.approx(float(unit[i] @ unit[best]), rel=1e-9)
    kept = method.memory
    method.begin_epoch(4, warmup=False)
    assert method.memory is kept  # frozen, as published
    method.memory_every = 1
    method.begin_epoch(5, warmup=False)
    assert method.memory is not kept


def test_trusted_pairs_are_those_of_small_loss() -> None:
    losses = torch.tensor([0.1, 5.0, 0.2, 5.1, 0.15, 4.9, 0.12, 5.2, 0.11, 5.0])
    assert trusted_pairs(losses, min_prob=0.9).tolist() == [0, 2, 4, 6, 8]
    assert trusted_pairs(losses, min_prob=1.0).tolist() == [0]  # a tenth, where the mixture trusts none
    vectors = torch.eye(3)
    assert nearest(vectors, torch.tensor([1, 2])).tolist()[1:] == [1, 2]


def test_wrong_starts_and_options_are_refused() -> None:
    with pytest.raises(ValueError, match="memory_every must be at least 0"):
        build_method("npc", memory_every=-1)
    with pytest.raises(ValueError, match="take_pairs"):
        build_method("npc").start(TrainingContext(3, torch.device("cpu"), Bilinear(), lambda _: iter(())))


def test_wrong_pairs_are_rarely_trusted() -> None:
    clean = tiny.tiny_pairs(num_images=150)
    trainer = tiny.tiny_trainer(method="npc", pairs=clean, epochs=4, warmup_epochs=4, decay_after=4, learning_rate=1e-2)
    trainer.run()
    is_noisy = torch.from_numpy(trainer.batches.pairs.image_of_text != clean.image_of_text)
    trusted = trainer.method.memory.flatten().unique()
    assert is_noisy[trusted].float().mean() < 0.5 * is_noisy.float().mean()


def test_the_pull_of_the_pairs_is_that_of_the_weighted_loss() -> None:
    """The trial step differentiates the unweighted loss by the same logits, which must not count."""
    method, matcher = started()
    forward = TrackedForward(lambda batch: (matcher(batch), {}))
    batch = Batch(pair_id=torch.arange(N), image_id=torch.arange(N))
    loss = method.loss(forward, batch, warmup=False)
    loss.total.backward()
    pull = forward.pop_pull()
    assert loss.report is not None
    assert loss.report.weight is not None
    logits = matcher(batch).detach().requires_grad_()
    weighted = torch.stack([logits.log_softmax(1).diagonal(), logits.log_softmax(0).diagonal()]).mean(dim=0)
    (-(loss.report.weight * weighted).mean()).backward()
    assert logits.grad is not None
    assert pull is not None
    torch.testing.assert_close(pull, -logits.grad.diagonal(), rtol=1e-6, atol=0)  # the reported weight is float32
