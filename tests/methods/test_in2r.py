"""IN2R as a method: its total, its memories, its refinement, its state."""

from __future__ import annotations

import pytest
import torch

from methods.fixed_networks import Stage
from oracles import in2r as oracle
from oracles import triplet
from sremkit.evaluation import detection_metrics
from sremkit.methods import METHODS, build_method
from sremkit.methods.in2r import IN2R, Memory, NeighbourAttention
from training import tiny

OPTIONS = {"refine": False, "num_neighbours": 2, "vector_temperature": 0.4, "prototype_weight": 0.6}


def stage(**options: object) -> Stage:
    made = Stage("in2r", n=12, **{**OPTIONS, **options})
    for k, memory in enumerate(made.method.memories):
        generator = torch.Generator().manual_seed(10 + k)
        vectors = torch.randn(2, 6, 5, dtype=torch.float64, generator=generator)
        memory.add(*torch.nn.functional.normalize(vectors, dim=-1))
    return made


def units(vectors: torch.Tensor) -> list[list[float]]:
    return [oracle.unit(row) for row in vectors.tolist()]


def hinges(scores: list[list[float]], rows: list[int], margin: float) -> float:
    return sum(triplet.triplet([[scores[i][j] for j in rows] for i in rows], [margin] * len(rows), "hardest"))


def expected_total(made: Stage) -> float:
    total = 0.0
    for k in (0, 1):
        split = made.method.clean[1 - k].tolist()
        clean, noisy = ([i for i, ok in enumerate(split) if ok is wanted] for wanted in (True, False))
        vectors = [units(made.images[k]), units(made.texts[k])]
        total += hinges(made.trained[k].sigmoid().tolist(), clean, 0.2)
        memory = made.method.memories[1 - k]
        for m in (0, 1):
            total += hinges(oracle.products(vectors[m], vectors[m]), clean, 0.3)
            queries = [vectors[m][i] for i in noisy]
            found = oracle.prototypes(queries, memory.of(m).tolist(), memory.of(1 - m).tolist(), 2)
            total += 0.6 * oracle.prototype_loss(queries, found, 0.4)
    return total


def test_the_total_matches_the_oracle() -> None:
    made = stage()
    expected = expected_total(made)
    assert made.total().item() == pytest.approx(expected, rel=1e-10)


def test_noisy_pairs_may_be_left_out_at_first() -> None:
    made, later = stage(noisy_after=1), stage(noisy_after=0)
    assert made.total().item() < later.total().item()
    made.method.num_splits = 2
    assert made.method.loss(lambda _: made.trained, made.batch, warmup=False).parts["prototype"] > 0


def swap_memories(made: Stage) -> None:
    made.method.memories.reverse()


def swap_splits(made: Stage) -> None:
    made.method.clean = made.method.clean.flip(0)


def swap_modalities(made: Stage) -> None:
    for memory in made.method.memories:
        memory.vectors = memory.vectors.flip(0)


def drop_prototypes(made: Stage) -> None:
    made.method.prototype_weight = 0.0


@pytest.mark.parametrize("twin", [swap_memories, swap_splits, swap_modalities, drop_prototypes])
def test_the_oracle_rejects_wrong_twins(twin) -> None:
    made = stage()
    expected = expected_total(made)
    twin(made)
    assert made.total().item() != pytest.approx(expected, rel=1e-6)


def test_the_warm_up_is_symmetric_cross_entropy_across_and_within_the_modalities() -> None:
    made = stage(temperature=0.5)
    expected = 0.0
    for k in (0, 1):
        expected += oracle.symmetric((made.trained[k].sigmoid() / 0.5).tolist())
        for vectors in (units(made.images[k]), units(made.texts[k])):
            expected += oracle.symmetric([[x / 0.4 for x in row] for row in oracle.products(vectors, vectors)])
    assert made.total(warmup=True).item() == pytest.approx(expected, rel=1e-10)


def test_confident_clean_pairs_enter_the_memory_of_the_network_that_is_trained_on_them() -> None:
    made = stage()
    made.method.threshold = [0.75, 0.6]
    before = [len(memory) for memory in made.method.memories]
    made.total()
    for k in (0, 1):
        peer = 1 - k
        confident = made.method.clean[peer] & (made.method.probability[peer] > made.method.threshold[peer])
        assert int(confident.sum()) > 0
        new = made.method.memories[k].of(0)[before[k] :]
        expected = torch.nn.functional.normalize(made.images[k][confident], dim=1)
        torch.testing.assert_close(new, expected, rtol=1e-10, atol=1e-12)


def test_the_threshold_is_the_mean_probability_of_the_clean_pairs() -> None:
    made = stage()
    for k in (0, 1):
        clean = made.method.clean[k]
        expected = float(made.method.probability[k][clean].mean())
        assert made.method._mean_of_clean(k) == pytest.approx(expected, rel=1e-12)
    made.method.clean[:] = False
    assert made.method._mean_of_clean(0) == 1.0


def test_a_memory_replaces_its_oldest_pairs() -> None:
    memory = Memory(4)
    for first in (0, 3, 6):
        rows = torch.arange(first, first + 3.0)[:, None]
        memory.add(rows, rows + 100)
    # 0 1 2 | 3 and then 4, 5 in the places of 0, 1 | 6, 7 in those of 2, 3 and 8 in that of 4
    assert memory.of(0).flatten().tolist() == [8, 5, 6, 7]
    assert memory.of(1).flatten().tolist() == [108, 105, 106, 107]
    memory.add(torch.arange(20.0)[:, None], torch.arange(20.0)[:, None])
    assert sorted(memory.of(0).flatten().tolist()) == [16, 17, 18, 19]
    memory.add(torch.zeros(0, 1), torch.zeros(0, 1))
    assert len(memory) == 4


def test_attention_refines_to_unit_vectors_whatever_the_order_of_the_neighbours() -> None:
    torch.manual_seed(0)
    refiner = NeighbourAttention(8, 2).double()
    neighbours = torch.randn(3, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = refiner(neighbours)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(refiner(neighbours[:, torch.tensor([3, 1, 0, 4, 2])]), found)
    with pytest.raises(ValueError, match="refiner_heads must divide"):
        NeighbourAttention(8, 3)


def test_the_refiners_learn_and_the_networks_still_get_their_gradient() -> None:
    made = stage(refine=True, refiner_heads=1, refiner_rate=1e-2)
    images = made.images[0].clone().requires_grad_()
    made.twins.networks()[0].images = images
    total = made.total()
    before = {name: p.clone() for name, p in made.method.refiners.state_dict().items()}
    total.backward()
    assert torch.isfinite(images.grad).all()
    assert images.grad.abs().sum() > 0
    made.total()
    moved = [not torch.equal(p, before[name]) for name, p in made.method.refiners.state_dict().items()]
    assert sum(moved) > 4


def test_both_networks_begin_with_the_same_weights() -> None:
    model = METHODS["in2r"].model("dual", image_dim=4, text_dim=4, hidden_size=8, embed_size=4)
    first, second = (network.state_dict() for network in model.networks())
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_split_finds_planted_noise() -> None:
    clean = tiny.tiny_pairs(num_images=150)
    options = {"warmup_epochs": 5, "epochs": 2, "decay_after": 2, "learning_rate": 1e-2}
    trainer = tiny.tiny_trainer(method="in2r", pairs=clean, method_options=IN2R.example_options(), **options)
    trainer.run()
    is_noisy = trainer.batches.pairs.image_of_text != clean.image_of_text
    assert detection_metrics(is_noisy, trainer.method.probability.mean(0).numpy())["auroc"] > 0.8


def test_options_out_of_range_are_refused() -> None:
    for options, words in (({"num_neighbours": 0}, "must be at least 1"), ({"temperature": 0.0}, "must be positive")):
        with pytest.raises(ValueError, match=words):
            build_method("in2r", **options)
