"""The parts of judging: folds, witnesses, surely wrong pairs, the competition, and folds kept on disk."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from made_pairs import SMALL, make_pairs, vectors_of, with_vectors
from oracles import competition as oracle
from oracles import linear_witness as linear_oracle
from sremkit.audit import judging
from sremkit.audit.better_fits import find_better
from sremkit.audit.competition import Competition, join_witnesses
from sremkit.audit.folds import group_lookalikes, split_folds
from sremkit.audit.judging import JudgingSettings, judge
from sremkit.audit.linear_witness import fit_linear_witness
from sremkit.audit.surely_wrong import make_wrong_pairs, number_texts
from sremkit.audit.verdicts import NOBODY


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Folds


def test_folds_keep_groups_together_and_are_even() -> None:
    rng = np.random.default_rng(0)
    image_of_text = rng.integers(0, 60, 400)
    group_of_image = np.arange(60) // 2  # pictures come in twos
    fold = split_folds(image_of_text, group_of_image, 3, seed=0)
    for group in range(30):
        assert len(set(fold[group_of_image[image_of_text] == group])) <= 1
    assert np.ptp(np.bincount(fold, minlength=3)) <= 14  # not more than the pairs of one group


def test_copies_of_a_picture_share_a_group_and_others_do_not() -> None:
    images = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)
    images[7] = images[3]
    images[9] = 1.01 * images[4] + 1e-3
    group = group_lookalikes(images)
    assert group[7] == group[3]
    assert group[9] == group[4]
    assert len(np.unique(group)) == 48


def test_copies_are_found_in_a_narrow_cone_where_all_vectors_are_nearly_parallel() -> None:
    images = 10 + np.random.default_rng(0).normal(size=(200, 20)).astype(np.float32)  # all cosines above 0.95
    images[7] = images[3]
    group = group_lookalikes(images)
    assert group[7] == group[3]
    assert len(np.unique(group)) == 199


# The linear witness


def test_the_linear_witness_finds_the_direction_that_images_and_texts_share() -> None:
    shared = draw(4000, seed=1)
    images, texts = draw(4000, 5, seed=2), draw(4000, 4, seed=3)
    images[:, 2] += 3 * shared
    texts[:, 0] += 3 * shared
    witness = fit_linear_witness(
        images, texts, torch.arange(4000), torch.ones(4000), ridge=1e-6, directions=1
    )
    # All other numbers are noise, so the maps look at these two columns alone.
    assert witness.image_map[:, 0].abs().argmax() == 2
    assert witness.text_map[:, 0].abs().argmax() == 0
    others = [k for k in range(5) if k != 2]
    assert witness.image_map[others, 0].abs().max() < 0.1 * witness.image_map[2, 0].abs()


def test_the_canonical_correlations_are_those_of_scikit_learn() -> None:
    from sklearn.cross_decomposition import CCA

    hidden = draw(600, 3, seed=1)
    images = (hidden @ draw(3, 6, seed=2) + draw(600, 6, seed=3)).double()
    texts = (hidden @ draw(3, 5, seed=4) + draw(600, 5, seed=5)).double()
    witness = fit_linear_witness(
        images.float(), texts.float(), torch.arange(600), torch.ones(600), ridge=1e-9, directions=3
    )
    x = ((images.float() - witness.image_mean) @ witness.image_map).double().numpy()
    y = ((texts.float() - witness.text_mean) @ witness.text_map).double().numpy()
    found = [np.corrcoef(x[:, k], y[:, k])[0, 1] for k in range(3)]
    a, b = CCA(n_components=3, max_iter=5000, tol=1e-10).fit_transform(images.numpy(), texts.numpy())
    expected = [np.corrcoef(a[:, k], b[:, k])[0, 1] for k in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-3)  # theirs is iterative, ours is in float32


def test_the_linear_witness_is_the_one_of_the_loops() -> None:
    images, texts = draw(15, 6, seed=1), draw(40, 4, seed=2)
    image_of_text = torch.arange(40).square() % 15  # some images come often, some never
    texts[:, :2] += images[image_of_text][:, :2]
    belief = draw(40, seed=3).sigmoid()
    witness = fit_linear_witness(images, texts, image_of_text, belief, ridge=0.3, directions=3)
    found = witness.encode_images(images) @ witness.encode_texts(texts).T
    arrays = (a.double().numpy() for a in (images, texts))
    expected = linear_oracle.cosines(*arrays, image_of_text.numpy(), belief.double().numpy(), 0.3, 3)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)  # the covariances are summed in float32


def test_a_pair_believed_twice_counts_like_two_pairs() -> None:
    images, texts = draw(40, 6, seed=1), draw(60, 4, seed=2)
    image_of_text = torch.arange(60) % 40
    belief = torch.ones(60)
    belief[5] = 2.0
    twice = torch.cat([torch.arange(60), torch.tensor([5])])
    weighted = fit_linear_witness(images, texts, image_of_text, belief)
    repeated = fit_linear_witness(images, texts[twice], image_of_text[twice], torch.ones(61))
    first, second = (w.encode_images(images) @ w.encode_texts(texts).T for w in (weighted, repeated))
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)  # float32 sums in another order


def test_a_pair_that_is_not_believed_leaves_no_trace() -> None:
    images, texts = draw(40, 6, seed=1), draw(40, 4, seed=2)
    belief = torch.ones(40)
    belief[3] = 0.0
    before = fit_linear_witness(images, texts, torch.arange(40), belief)
    texts[3] = 100.0
    after = fit_linear_witness(images, texts, torch.arange(40), belief)
    torch.testing.assert_close(before.text_map.abs(), after.text_map.abs(), rtol=1e-3, atol=1e-4)


# Surely wrong pairs


def test_made_pairs_are_no_pairs_of_the_data_and_stay_in_the_fold() -> None:
    rng = np.random.default_rng(0)
    image_of_text = rng.integers(0, 12, 80)
    group_of_image = np.arange(12) // 2
    text_number = np.arange(80) // 4  # every text comes four times
    rows = np.flatnonzero(image_of_text < 6)
    made = make_wrong_pairs(rows, image_of_text, group_of_image, text_number, rounds=20, seed=0)
    assert len(made.text) > 100
    assert set(made.text) <= set(rows)
    assert set(made.image) <= set(range(6))
    given = {(text_number[r], group_of_image[image_of_text[r]]) for r in rows}
    assert not given & {
        (text_number[t], group_of_image[i]) for t, i in zip(made.text, made.image, strict=True)
    }


def test_a_texts_given_picture_is_hidden_as_often_as_it_would_be_elsewhere() -> None:
    image_of_text = np.arange(3000)
    rows = np.arange(1000)  # a third of the pictures is in this fold
    made = make_wrong_pairs(rows, image_of_text, image_of_text, image_of_text, rounds=5, seed=0)
    hides = made.hidden != NOBODY
    assert hides.mean() == pytest.approx(2 / 3, abs=0.03)
    assert (made.hidden[hides] == image_of_text[made.text[hides]]).all()


def test_texts_are_numbered_by_their_vectors() -> None:
    texts = draw(20, 6)
    texts[11] = texts[4]
    numbers = number_texts(texts)
    assert numbers[11] == numbers[4]
    assert len(np.unique(numbers)) == 19


# The competition


@pytest.mark.parametrize("seed", range(3))
def test_the_standing_is_the_one_of_the_loops(seed: int) -> None:
    images, texts = draw(8, 3, seed=seed).double(), draw(20, 3, seed=seed + 10).double()
    rng = np.random.default_rng(seed)
    image_of_text, candidates = rng.integers(0, 8, 20), np.sort(rng.permutation(20)[:9])
    compare = Competition(images, texts, torch.from_numpy(image_of_text), torch.from_numpy(candidates))
    asked = rng.integers(0, 8, 30), rng.integers(0, 20, 30), rng.integers(-1, 8, 30)
    found = compare.standing(*asked)
    for k, (image, text, hidden) in enumerate(zip(*asked, strict=True)):
        expected = oracle.standing(
            images.tolist(), texts.tolist(), image_of_text.tolist(), candidates.tolist(), image, text, hidden
        )
        for name, value in expected.items():
            assert getattr(found, name)[k] == pytest.approx(value, rel=1e-10), name


def test_a_tie_counts_against_the_pair() -> None:
    # Image 0 fits texts 0 and 1 alike; text 1 competes, so the pair comes second.
    images, texts = torch.tensor([[1.0], [0.5]]), torch.tensor([[1.0], [1.0]])
    compare = Competition(images, texts, torch.tensor([0, 1]), torch.tensor([1]))
    assert compare.standing(np.array([0]), np.array([0])).rank_i2t.tolist() == [2]


def test_a_witness_that_tells_nothing_is_not_heard() -> None:
    class Telling:
        def encode_images(self, images):
            return images

        encode_texts = encode_images

    class Silent(Telling):
        def encode_texts(self, texts):
            return texts.roll(7, dims=0)  # of somebody else

    vectors = torch.nn.functional.normalize(draw(2000, 6), dim=1)
    rows = np.arange(2000)
    image_emb, text_emb = join_witnesses(
        [Telling(), Silent()], vectors, vectors, (rows, rows), (np.roll(rows, 31), rows)
    )
    telling, silent = (image_emb[:, :6] * text_emb[:, :6]).std(), (image_emb[:, 6:] * text_emb[:, 6:]).std()
    assert silent < 0.05 * telling


def test_better_ones_must_be_clearly_better() -> None:
    # Logits of image 0: its own text 0, text 1 at 3 and text 2 at 1 above it. Ten to one is a distance of 2.3.
    images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    texts = torch.tensor([[0.0, 9.0], [3.0, 9.0], [1.0, 9.0]])
    better_text, _ = find_better(images, texts, torch.arange(3), np.arange(3), np.arange(3), seed=0)
    assert better_text[0] == 1
    texts[1, 0] = 2.0
    better_text, _ = find_better(images, texts, torch.arange(3), np.arange(3), np.arange(3), seed=0)
    assert better_text[0] == NOBODY


# Folds kept on disk


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """How many pairs each learning saw. The linear witness learns alone, because it is quick."""
    learnt: list[int] = []

    def learn_quickly(vectors, rows, settings, *, seed, on_step):
        learnt.append(len(rows))
        pairs = torch.from_numpy(rows)
        return [
            fit_linear_witness(
                vectors.images, vectors.texts[pairs], vectors.image_of_text[pairs], torch.ones(len(rows))
            )
        ]

    monkeypatch.setattr(judging, "learn_witnesses", learn_quickly)
    return learnt


def test_finished_folds_are_not_judged_again_and_give_the_same_verdicts(tmp_path: Path, counted) -> None:
    pairs, _ = make_pairs(0.3, num_images=300)
    first = judge(pairs, SMALL, folder=tmp_path)
    assert len(counted) == 2
    again = judge(pairs, SMALL, folder=tmp_path)
    assert len(counted) == 2
    np.testing.assert_array_equal(first.mismatch_score, again.mismatch_score)
    np.testing.assert_array_equal(first.better_image, again.better_image)
    np.testing.assert_array_equal(first.rank_i2t, again.rank_i2t)


def test_an_interrupted_judging_goes_on_with_the_missing_fold(tmp_path: Path, counted) -> None:
    pairs, _ = make_pairs(0.3, num_images=300)

    def stop(what: str, done: int, total: int) -> None:
        if what == "judging":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(pairs, SMALL, folder=tmp_path, progress=stop)
    assert len(counted) == 1
    resumed = judge(pairs, SMALL, folder=tmp_path)
    assert len(counted) == 2
    np.testing.assert_array_equal(resumed.mismatch_score, judge(pairs, SMALL).mismatch_score)


@pytest.mark.parametrize("change", ["vector", "pairing", "settings", "broken file"])
def test_what_has_changed_is_judged_anew(tmp_path: Path, counted, change: str) -> None:
    pairs, _ = make_pairs(0.3, num_images=60)
    judge(pairs, SMALL, folder=tmp_path)
    settings = SMALL
    if change == "vector":
        images, _ = vectors_of(pairs)
        images[3, 3] += 1
        pairs = with_vectors(pairs, images=images)
    elif change == "pairing":
        pairs = pairs.paired_as(np.roll(pairs.image_of_text, 1))
    elif change == "settings":
        settings = JudgingSettings(**{**vars(SMALL), "candidates": 50})
    else:
        for fold in tmp_path.glob("fold-*"):
            (fold / "facts.json").write_text(json.dumps({}))
    judge(pairs, settings, folder=tmp_path)
    assert len(counted) == 4


def test_another_precision_needs_no_new_judging(tmp_path: Path, counted) -> None:
    pairs, _ = make_pairs(0.3, num_images=300)
    strict = judge(pairs, SMALL, folder=tmp_path)
    lenient = judge(pairs, JudgingSettings(**{**vars(SMALL), "precision": 0.7}), folder=tmp_path)
    assert len(counted) == 2
    assert lenient.is_mismatch.sum() > strict.is_mismatch.sum()
