"""The pieces of an audit by shard: the sample, the folds, the comparison, the line and the merging."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from made_pairs import SMALL, from_arrays, make_pairs, vectors_of, with_vectors
from sharded import small_plan
from sremkit.audit.by_shard import model as model_module
from sremkit.audit.by_shard.cut import BINS, ScoreCounts
from sremkit.audit.by_shard.model import FoldJudge, Pool, learn
from sremkit.audit.by_shard.model_store import read_model, write_model
from sremkit.audit.by_shard.page import Excerpt
from sremkit.audit.by_shard.parts import judge_pairs
from sremkit.audit.by_shard.plan import Plan
from sremkit.audit.by_shard.sample import (
    Sample,
    contribute,
    fold_of,
    gather,
    hash_texts,
    picture_keys,
    write_contribution,
)
from sremkit.audit.by_shard.shards import Shard, list_embeddings, list_shards
from sremkit.audit.choice import mismatches_at
from sremkit.audit.competition import Say
from sremkit.audit.stages import Choice
from sremkit.audit.verdicts import NOBODY
from sremkit.data.pairs import Pairs
from sremkit.errors import DataError, UserError

pa = pytest.importorskip("pyarrow")


def sampled(tmp_path: Path, pairs: Pairs, *, shards: int, sample: int, seed: int = 0) -> Sample:
    """The sample of pairs that lie in so many shards."""
    plan = plan_of(tmp_path / f"{shards}-{sample}-{seed}", shards, sample=sample, seed=seed)
    for number, rows in enumerate(np.array_split(np.arange(len(pairs)), shards)):
        some = contribute(pairs.select(rows), plan.allowance, seed=seed)
        write_contribution(plan.folder(number) / "sample", some)
    return gather(plan)


def plan_of(out: Path, shards: int, *, sample: int, seed: int = 0) -> Plan:
    file = Path(__file__)  # any file that exists
    some = [Shard(str(k), file) for k in range(shards)]
    return small_plan(out, some, sample=sample, settings=replace(SMALL, seed=seed))


def test_the_sample_depends_on_ids_and_seed_and_not_on_the_shards(tmp_path: Path) -> None:
    pairs, _ = make_pairs(num_images=100)
    samples = [sampled(tmp_path, pairs, shards=shards, sample=90) for shards in (1, 3, 7)]
    expected = np.argsort(hash_texts(pairs.pair_ids, seed=0))[:90]
    for sample in samples:
        assert sample.pair_ids == [pairs.pair_ids[k] for k in expected]
        assert torch.equal(sample.vectors.images, samples[0].vectors.images)
        assert torch.equal(sample.vectors.texts, samples[0].vectors.texts)
    other = sampled(tmp_path, pairs, shards=3, sample=90, seed=1)
    assert set(other.pair_ids) != set(samples[0].pair_ids)


def test_the_sample_holds_the_pairs_as_they_were_given(tmp_path: Path) -> None:
    pairs, _ = make_pairs(num_images=50)
    images, texts = vectors_of(pairs)
    sample = sampled(tmp_path, pairs, shards=4, sample=60)
    for k, pair_id in enumerate(sample.pair_ids):
        row = pairs.pair_ids.index(pair_id)
        image = int(sample.vectors.image_of_text[k])
        np.testing.assert_array_equal(sample.vectors.texts[k], texts[row])
        np.testing.assert_array_equal(sample.vectors.images[image], images[pairs.image_of_text[row]])
        assert sample.image_ids[k] == pairs.image_ids[pairs.image_of_text[row]]
        assert sample.captions[k] == pairs.texts[row]


def test_a_hash_draws_evenly() -> None:
    order = hash_texts([str(k) for k in range(40_000)], seed=0)
    shares = np.histogram(order / 2.0**63, bins=10, range=(0, 1))[0] / 40_000
    assert np.abs(shares - 0.1).max() < 5 * np.sqrt(0.1 * 0.9 / 40_000)  # five standard errors
    folds = np.bincount(fold_of(order, 3, seed=0)) / 40_000
    assert np.abs(folds - 1 / 3).max() < 5 * np.sqrt(2 / 9 / 40_000)
    assert not np.array_equal(fold_of(order, 3, seed=0), fold_of(order, 3, seed=1))


def test_no_witness_has_seen_a_picture_that_it_judges_nor_one_that_looks_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs, _ = make_pairs(num_images=200, captions=1)
    images, _ = vectors_of(pairs)
    images[100:] = images[:100] + 1e-4  # every picture again, saved a little worse: its hash is another
    pairs = with_vectors(pairs, images=images)
    sample = sampled(tmp_path, pairs, shards=2, sample=10**6)
    number_of = {key: k for k, key in enumerate(picture_keys(pairs))}
    learnt: list[set[int]] = []

    def watch(vectors, rows, settings, **options):
        keys = sample.image_key[vectors.image_of_text.numpy()[rows]]
        learnt.append({number_of[key] % 100 for key in keys})
        return real(vectors, rows, settings, **options)

    real = model_module.learn_witnesses
    monkeypatch.setattr(model_module, "learn_witnesses", watch)
    learn(sample, SMALL, num_images=200)
    fold_of_picture = fold_of(picture_keys(pairs), SMALL.folds, seed=SMALL.seed)
    assert len(learnt) == SMALL.folds
    for fold, seen in enumerate(learnt):
        assert seen
        judged = {k % 100 for k in np.flatnonzero(fold_of_picture == fold)}
        assert not seen & judged


def test_a_model_on_disk_judges_like_the_one_in_memory(tmp_path: Path) -> None:
    pairs, _ = make_pairs(num_images=150)
    model = learn(sampled(tmp_path, pairs, shards=2, sample=400), SMALL, num_images=150)
    write_model(tmp_path / "model", model, SMALL, key="a")
    again = read_model(tmp_path / "model", "a")
    for first, second in zip(judge_pairs(pairs, model), judge_pairs(pairs, again), strict=True):
        for name, values in vars(first).items():
            np.testing.assert_array_equal(values, getattr(second, name), err_msg=name)
    assert again.scores.noise_rate is not None
    assert vars(again.scores.noise_rate) == vars(model.scores.noise_rate)  # type: ignore[arg-type]


class Unchanged:
    """A witness to whom images and texts are unit vectors already."""

    def encode_images(self, images):
        return images

    def encode_texts(self, texts):
        return texts


def judge_with(pool_images: list, pool_texts: list, pool_key: list[int]) -> FoldJudge:
    names = [f"p{k}" for k in range(len(pool_key))]
    tensors = (torch.tensor(rows, dtype=torch.float32) for rows in (pool_images, pool_texts))
    pool = Pool(*tensors, np.array(pool_key), 2, names, names, names)
    return FoldJudge([Unchanged()], [Say(1.0, 1.0)], 0.0, 1.0, pool)


def test_standing_is_the_softmax_among_the_candidates_without_the_own_picture() -> None:
    judge = judge_with([[1, 0], [0, 1], [0, 9]], [[0, 2], [1, 0], [9, 9]], [50, 51, 52])
    images, texts = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 0.0]])
    # F of the pair is 2. Texts of the two candidates for its image: 2 and 1; images for its text: 2 and 0.
    # The third of the pool is no candidate.
    heard = judge.hear(images, texts, torch.tensor([0]), np.array([7]))
    expected = 2 - np.log(np.exp([2, 2, 1]).sum()) + 2 - np.log(np.exp([2, 2, 0]).sum())
    assert heard.standing.statistic[0] == pytest.approx(expected, rel=1e-6)
    assert heard.standing.energy_i2t[0] == pytest.approx(-np.log(np.exp([2, 2, 1]).sum()), rel=1e-6)
    assert (heard.standing.rank_i2t[0], heard.standing.rank_t2i[0]) == (2, 2)  # a tie counts against it
    # Now the first candidate is the pair's own picture: it does not compete.
    heard = judge.hear(images, texts, torch.tensor([0]), np.array([50]))
    expected = 2 - np.log(np.exp([2, 1]).sum()) + 2 - np.log(np.exp([2, 0]).sum())
    assert heard.standing.statistic[0] == pytest.approx(expected, rel=1e-6)
    assert (heard.standing.rank_i2t[0], heard.standing.rank_t2i[0]) == (1, 1)


def test_what_fits_better_is_sought_in_the_pool_and_never_with_the_own_picture() -> None:
    judge = judge_with([[1, 0], [0, 1], [8, 0]], [[0, 2], [1, 0], [9, 0]], [50, 51, 52])
    images, texts = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    heard = judge.hear(images, texts, torch.tensor([0]), np.array([7]))
    # F of the pair is 1. The best text is the third, 9, and the best image the third, 8: both clearly better.
    better_text, better_image = heard.better(np.array([0]))
    assert (better_text[0] - 1, better_image[0] - 1) == (2, 2)
    heard = judge.hear(images, texts, torch.tensor([0]), np.array([52]))
    better_text, better_image = heard.better(np.array([0]))
    assert (better_text[0], better_image[0]) == (NOBODY, NOBODY)


def test_a_picture_with_two_captions_in_the_pool_has_one_number() -> None:
    numbers = model_module._numbers_of(np.array([5, 9, 5, 3]), np.array([3, 8]))
    assert numbers.tolist() == [2, 3, 2, 0]  # 5 is new and first of the pool, 9 second; 3 is known as 0


@pytest.mark.parametrize("seed", range(3))
def test_the_line_of_a_histogram_is_that_of_all_scores(seed: int) -> None:
    rng = np.random.default_rng(seed)
    score = np.where(rng.random(30_000) < 0.3, rng.beta(0.3, 8, 30_000), rng.beta(9, 0.4, 30_000))
    counts = ScoreCounts()
    for part in np.array_split(score, 7):
        counts.add(part)
    for rule in (
        {"precision": 0.95},
        {"precision": 0.5},
        {"fraction": 0.2},
        {"threshold": 0.3},
        {"fraction": 1.0},
    ):
        line, exact = counts.line(Choice(**rule)), mismatches_at(score, **rule)
        assert not (exact[score >= line] & (score >= line + 1 / BINS)[score >= line]).any()
        assert exact[score < line].all()  # never one too many
        assert exact.sum() - (score < line).sum() <= 5  # those of a single bin


def test_the_line_in_hand_worked_numbers() -> None:
    counts = ScoreCounts()
    counts.add(np.array([0.0, 0.25, 0.25, 0.5, 1.0]))
    # Expected precision of the worst 1, 3, 4 and 5: 1, (1 + 1.5) / 3 = 0.833, 3 / 4 = 0.75, 3 / 5 = 0.6
    assert counts.line(Choice(precision=0.9)) == 0.25
    assert counts.line(Choice(precision=0.8)) == 0.5
    assert counts.line(Choice(precision=0.7)) == 1 - 1 / BINS  # the last bin begins there, and 1 is in it
    assert counts.line(Choice(precision=0.6)) == np.inf
    assert counts.line(Choice(fraction=0.2)) == 0.25
    assert counts.line(Choice(fraction=0.59)) == 0.25  # 2 of 5, and the two at 0.25 share their fate
    assert counts.line(Choice(fraction=0.6)) == 0.5
    assert counts.line(Choice(threshold=0.3)) == 0.3
    assert ScoreCounts().line(Choice(precision=0.9)) == 0.0


def test_an_excerpt_takes_every_kth_row_whatever_the_pieces() -> None:
    whole = pa.table({"n": np.arange(103)})
    excerpt = Excerpt(103, most=10)  # every 11th
    start = 0
    for number, size in enumerate((40, 1, 5, 57)):
        excerpt.add(whole.slice(start, size), number, 0)
        start += size
    assert excerpt.table()["n"].to_pylist() == list(range(0, 103, 11))
    assert excerpt.places()[:5].tolist() == [[0, 0], [0, 11], [0, 22], [0, 33], [2, 3]]  # 44 is 40 + 1 + 3


def test_shards_are_found_in_a_folder_and_by_a_pattern(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "a.parquet", "a_stats.json"):
        (tmp_path / name).write_bytes(b"")
    assert [shard.name for shard in list_shards(tmp_path)] == ["a", "b"]
    assert {shard.path.suffix for shard in list_shards(tmp_path)} == {".tar"}
    for k in (8, 9, 10):
        (tmp_path / f"s{k:02d}.pq").write_bytes(b"")
    assert [s.name for s in list_shards(tmp_path / "s{08..10}.pq")] == ["s08", "s09", "s10"]
    with pytest.raises(DataError, match=r"s11\.pq does not exist \(1 of 2 shards\)"):
        list_shards(tmp_path / "s{10..11}.pq")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no"):
        list_shards(tmp_path / "empty")


def test_embeddings_come_in_as_many_parts_as_texts(tmp_path: Path) -> None:
    for name in ("x/0.npy", "x/1.npy", "y/0.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / name, np.zeros((2, 2)))
    with pytest.raises(UserError, match=r"holds 2 parts and .* 1; part k of both"):
        list_embeddings(tmp_path / "x", tmp_path / "y")


def test_copies_under_other_names_are_one_picture() -> None:
    images = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    images[3] = images[1]
    keys = picture_keys(from_arrays(images, images, np.arange(4)))
    assert keys[3] == keys[1]
    assert len(set(keys.tolist())) == 3
