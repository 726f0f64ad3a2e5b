"""BiCro's labels and warm-up against loops, by hand, and against the bug of its public code."""

from __future__ import annotations

import math

import pytest
import torch

from methods.fixed_networks import Stage
from oracles import bicro as oracle
from oracles import ncr, triplet
from sremkit.errors import UserError
from sremkit.methods import build_method
from sremkit.methods.bicro import bidirectional_consistency, ratio
from sremkit.methods.common.batch_scores import pooled_vectors
from sremkit.methods.common.co_teaching import Strongest, best_tenth, match_strength
from sremkit.methods.common.mixtures import fit_two_betas, lower_gaussian_probability
from sremkit.models.matcher import Encoded


def found_labels(stage: Stage, network: int) -> torch.Tensor:
    split = stage.method._split(stage.batch, stage.method._valid(stage.batch), by=1 - network)
    return stage.method.labels(stage.method._predict(stage.batch), network, split)


def expected_labels(stage: Stage, network: int) -> list[float]:
    peer = 1 - network
    return oracle.labels(
        stage.seen[peer].sigmoid().tolist(),
        stage.images[peer].tolist(),
        stage.texts[peer].tolist(),
        stage.method.clean[peer].tolist(),
        0.2,
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("network", [0, 1])
def test_the_labels_are_the_oracles(seed: int, network: int) -> None:
    stage = Stage("bicro", n=40, seed=seed)
    expected = expected_labels(stage, network)
    assert found_labels(stage, network).tolist() == pytest.approx(expected, rel=1e-10)
    kinds = [sum(y == 0 for y in expected), sum(0 < y < 1 for y in expected), sum(y == 1 for y in expected)]
    assert min(kinds) >= 2  # all three kinds occur, else the comparison says little


def test_an_anchor_has_label_1_even_if_another_anchor_shows_the_same_image() -> None:
    stage = Stage("bicro", n=40)
    before = [i for i, y in enumerate(expected_labels(stage, 0)) if y == 1]
    assert len(before) >= 2
    stage.images[:, before] = stage.images[:, before[:1]]
    assert found_labels(stage, 0)[before].tolist() == [1.0] * len(before)
    assert found_labels(stage, 0).tolist() == pytest.approx(expected_labels(stage, 0), rel=1e-10)


def test_the_division_is_by_betas_unless_normals_are_asked_for() -> None:
    losses = torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 2
    by_betas, by_normals = (build_method("bicro", mixture=m).clean_posterior(losses) for m in ("beta", "normal"))
    assert torch.equal(by_betas, fit_two_betas(losses).lower_probability(losses))
    assert torch.equal(by_normals, lower_gaussian_probability(losses))


@pytest.mark.parametrize("with_noisy", [False, True])
@pytest.mark.parametrize("negatives", ["hardest", "mean"])
def test_the_loss_is_the_oracles(with_noisy: bool, negatives: str) -> None:
    stage = Stage("bicro", noisy_after=0 if with_noisy else 1, negatives=negatives)
    expected = sum(
        ncr.loss(
            stage.trained[network].sigmoid().tolist(),
            expected_labels(stage, network),
            stage.method.clean[1 - network].tolist(),
            0.2,
            10.0,
            with_noisy,
            negatives,
        )
        for network in (0, 1)
    )
    assert stage.total().item() == pytest.approx(expected, rel=1e-10)


def misassigned(stage: Stage, network: int) -> torch.Tensor:
    """The public code's scatter: the k-th pair that is no anchor gets the k-th value of the whole batch."""
    split = stage.method._split(stage.batch, stage.method._valid(stage.batch), by=1 - network)
    peer = stage.method._predict(stage.batch)[1 - network]
    anchors = best_tenth(match_strength(peer.scores, margin=0.2, valid=split.valid), split.clean)
    right = found_labels(stage, network)
    others = torch.ones(stage.n, dtype=torch.bool)
    others[anchors.pair[anchors.present]] = False
    wrong = right.clone()
    wrong[others] = right[: int(others.sum())]
    return wrong


def own_network(stage: Stage, network: int) -> torch.Tensor:
    split = stage.method._split(stage.batch, stage.method._valid(stage.batch), by=1 - network)
    return stage.method.labels(stage.method._predict(stage.batch)[::-1], network, split)


def no_min_label(stage: Stage, network: int) -> torch.Tensor:
    stage.method.min_label = 0.0
    return found_labels(stage, network)


def images_and_texts_mixed_up(stage: Stage, network: int) -> torch.Tensor:
    for member in stage.twins.networks():
        member.texts = member.images
    return found_labels(stage, network)


TWINS = [misassigned, own_network, no_min_label, images_and_texts_mixed_up]


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_the_oracle_rejects_wrong_twins(twin) -> None:
    stage = Stage("bicro", n=40)
    expected = expected_labels(stage, 0)
    assert found_labels(stage, 0).tolist() == pytest.approx(expected, rel=1e-10)
    assert twin(stage, 0).tolist() != pytest.approx(expected, rel=1e-6)


def test_consistency_by_hand() -> None:
    # One anchor, pair 0. Pair 1's image has cosine 0.8 to the anchor's and its text 0.6: ratio 3/4 in both
    # directions. Pair 2's text points the other way: 0. The anchor itself: 1.
    images = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.8, 0.6]], dtype=torch.float64)
    texts = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-0.6, 0.8]], dtype=torch.float64)
    found = bidirectional_consistency(images, texts, anchors_at([0]))
    assert found.tolist() == pytest.approx([1.0, 0.75, 0.0], rel=1e-12)
    assert bidirectional_consistency(images, texts, anchors_at([], empty=(0,))).tolist() == [0, 0, 0]


def anchors_at(pairs: list[int], empty: tuple[int, ...] = ()) -> Strongest:
    """These anchors, and some empty places, in which any number may stand."""
    numbers = torch.tensor([*pairs, *empty], dtype=torch.long)
    return Strongest(numbers, torch.arange(len(numbers)) < len(pairs))


def consistency_to(images: torch.Tensor, texts: torch.Tensor, anchors: list[int]) -> torch.Tensor:
    """With as many columns as there are anchors: the definition, in shapes that depend on the batch."""
    if not anchors:
        return torch.zeros(len(images), dtype=images.dtype)
    image_cosines, text_cosines = images @ images[anchors].T, texts @ texts[anchors].T
    ratios = ratio(image_cosines, text_cosines)
    rows = torch.arange(len(images))
    return (ratios[rows, image_cosines.argmax(dim=1)] + ratios[rows, text_cosines.argmax(dim=1)]) / 2


@pytest.mark.parametrize("anchors", [[], [5], [7, 2], [9, 3, 1]], ids=str)
def test_empty_slots_are_no_nearest_anchor(anchors: list[int]) -> None:
    generator = torch.Generator().manual_seed(3)
    images, texts = (
        torch.nn.functional.normalize(torch.randn(12, 4, generator=generator, dtype=torch.float64), dim=1)
        for _ in range(2)
    )
    images[9] = images[3]  # two anchors of one image: the first in their order is the nearest
    expected = consistency_to(images, texts, anchors)
    for empty in ((0,), (0, 11, 4), (9,)):
        found = bidirectional_consistency(images, texts, anchors_at(anchors, empty))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_a_ratio_is_the_smaller_over_the_larger_whatever_the_order() -> None:
    x = torch.tensor([0.2, 0.5, -0.2, 0.3, 0.0, 0.4], dtype=torch.float64)
    y = torch.tensor([0.4, 0.25, -0.4, -0.3, 0.5, 0.4], dtype=torch.float64)
    assert ratio(x, y).tolist() == pytest.approx([0.5, 0.5, 0.5, 0.0, 0.0, 1.0])
    assert torch.equal(ratio(x, y), ratio(y, x))


def test_whole_vectors_are_means_of_what_is_present_or_the_global_vector() -> None:
    local = torch.tensor([[[3.0, 0.0], [0.0, 4.0], [9.0, 9.0]]])
    mask = torch.tensor([[True, True, False]])
    # The mean of (3, 0) and (0, 4) points along (3, 4) / 5.
    torch.testing.assert_close(pooled_vectors(Encoded(local=local, mask=mask)), torch.tensor([[0.6, 0.8]]))
    torch.testing.assert_close(pooled_vectors(Encoded(pooled=torch.tensor([[6.0, 8.0]]))), torch.tensor([[0.6, 0.8]]))


def test_the_warm_up_learns_from_the_pairs_of_smallest_loss_alone() -> None:
    stage = Stage("bicro", n=26, warmup_keep=0.3)
    expected = 0.0
    for f in stage.trained:
        losses = triplet.triplet(f.sigmoid().tolist(), [0.2] * stage.n, "mean")
        expected += math.fsum(sorted(losses)[: int(0.3 * stage.n)])  # 7.8, so 7 of 26
    assert expected > 0
    assert stage.total(warmup=True).item() == pytest.approx(expected, rel=1e-10)


def test_a_misspelt_option_is_an_error() -> None:
    with pytest.raises(UserError, match=r"did you mean 'method\.margin'"):
        build_method("bicro", margn=0.1)
