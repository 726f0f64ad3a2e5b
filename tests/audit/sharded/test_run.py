"""A sharded audit agrees with the plain one, and does not depend on how the work is divided."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_pairs import PRECISE, SMALL, make_pairs
from sharded import SEED, Watched, small_plan, write_embeddings
from sremkit.audit.audit import Audit
from sremkit.audit.embed import score_pairs
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.sharded.plan import ShardPlan, list_embeddings
from sremkit.audit.sharded.run import Engine, Share, audit_shards, run_locally
from sremkit.errors import DataError, UserError
from sremkit.evaluation import detection_metrics

parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("jinja2")

SHARDS = 5
IMAGES = 1200  # with three captions each
SAMPLE = 2400  # of the 3,600 pairs
FUZZ = 0.2


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sharded")
    write_embeddings(root, num_images=IMAGES, shards=SHARDS, fuzz=FUZZ)
    return root


@pytest.fixture(scope="module")
def plan(root: Path) -> Callable[..., ShardPlan]:
    shards = list_embeddings(root / "images", root / "texts")
    return lambda out, **options: small_plan(out, shards, **{"max_train_pairs": SAMPLE, **options})


@pytest.fixture(scope="module")
def finished(plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out"
    assert audit_shards(plan(out)).summary is not None
    return out


def table_of(out: Path):
    return parquet.read_table(out / "pairs.parquet")


def test_it_agrees_with_the_plain_audit(finished: Path) -> None:
    pairs, is_wrong = make_pairs(0.3, num_images=IMAGES, fuzz=FUZZ)
    whole = score_pairs(pairs, replace(SMALL, seed=SEED))
    table = table_of(finished)
    score, flagged = table["match_probability"].to_numpy(), np.array(table["is_mismatch"].to_pylist())
    found = detection_metrics(is_wrong, score, verdict=flagged)
    assert found["auroc"] > detection_metrics(is_wrong, whole.match_prob)["auroc"] - 0.01
    assert found["precision"] > 0.93
    assert found["recall"] > 0.8
    # One pair in twenty may be on the other side of the cutoff.
    assert (flagged == whole.flag(PRECISE)).mean() > 0.95
    assert np.corrcoef(score, whole.match_prob)[0, 1] > 0.9


def test_the_summary_counts_all_pairs_and_training_pairs(finished: Path, plan) -> None:
    result = audit_shards(plan(finished))
    assert result.was_complete
    summary = result.summary
    assert summary is not None
    assert (summary["pairs"], summary["scored"]) == (3 * IMAGES, 3 * IMAGES)
    assert summary["sharded"]["shards"] == SHARDS
    assert summary["sharded"]["train_pairs"] == SAMPLE
    assert summary["mismatches"] == sum(table_of(finished)["is_mismatch"].to_pylist())
    assert summary["expected_precision"] == pytest.approx(0.95, abs=0.01)
    assert summary["noise_rate"]["low"] <= 0.3 <= summary["noise_rate"]["high"]
    assert (finished / "report.html").stat().st_size > 10_000


def test_the_columns_are_those_of_a_plain_audit(finished: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    plain_audit = Audit.from_embeddings(rng.normal(size=(30, 4)), rng.normal(size=(30, 4))).find(tmp_path / "a")
    assert table_of(finished).schema.names == plain_audit.get_issues().schema.names
    assert parquet.read_schema(finished / "parts" / "003.parquet").names == table_of(finished).schema.names


def test_only_the_merge_flags_mismatches(finished: Path) -> None:
    part = parquet.read_table(finished / "parts" / "003.parquet")
    assert part["is_mismatch"].null_count == len(part)
    assert table_of(finished)["is_mismatch"].null_count == 0


def test_pairs_keep_their_order_and_get_ids_of_their_own(finished: Path) -> None:
    ids = table_of(finished)["id"].to_pylist()
    assert ids[:2] == ["000/0", "000/1"]
    assert ids[-1] == f"004/{3 * IMAGES // SHARDS - 1}"
    assert len(set(ids)) == 3 * IMAGES


@pytest.mark.parametrize("after", [2, SHARDS + 3])  # in the middle of the features, and of the scoring
def test_work_before_an_interruption_is_not_repeated(after: int, plan, finished: Path, tmp_path: Path) -> None:
    first = Watched(breaks_after=after)
    with pytest.raises(KeyboardInterrupt):
        audit_shards(plan(tmp_path / "out"), engine=first)
    (tmp_path / "out" / "parts").mkdir(exist_ok=True)
    (tmp_path / "out" / "parts" / ".partial-004.parquet").write_bytes(b"half")
    second = Watched()
    assert audit_shards(plan(tmp_path / "out"), engine=second).summary is not None
    works = [(work, k) for work in ("prepare_shard", "score_shard") for k in range(SHARDS)]
    assert first.done + second.done == works
    assert table_of(tmp_path / "out").equals(table_of(finished))


def test_two_tasks_and_a_last_command_give_equal_results(plan, finished: Path, tmp_path: Path) -> None:
    out, done = tmp_path / "out", Watched()

    def run(share: Share | None):
        return audit_shards(plan(out), share=share, engine=done)

    first = run(Share(0, 2))
    assert first.summary is None
    assert "2 shards have no features yet (001, 003): they belong to other tasks" in first.missing
    assert not (out / "model").exists()
    second = run(Share(1, 2))  # finds all features there, so it learns
    assert second.summary is None
    assert "3 shards have no scores yet (000, 002, 004)" in second.missing
    assert run(None).summary is not None
    assert [k for work, k in done.done if work == "prepare_shard"] == [0, 2, 4, 1, 3]
    assert [k for work, k in done.done if work == "score_shard"] == [1, 3, 0, 2, 4]
    assert table_of(out).equals(table_of(finished))


def test_the_last_of_the_tasks_merges(plan, finished: Path, tmp_path: Path) -> None:
    results = [audit_shards(plan(tmp_path / "out"), share=Share(task, 2)).summary is not None for task in (0, 1, 0)]
    assert results == [False, False, True]
    assert table_of(tmp_path / "out").equals(table_of(finished))


@pytest.mark.parametrize("share", [(2, 2), (-1, 2), (0, 0)])
def test_an_invalid_task_number_is_a_user_error(share: tuple[int, int]) -> None:
    with pytest.raises(UserError, match="--task must be a number from 0 to"):
        Share(*share)


def test_another_cutoff_only_merges_again(plan, finished: Path, tmp_path: Path) -> None:
    def refuse(work, plan, numbers):
        assert not numbers
        return iter(())

    engine: Engine = refuse
    before = table_of(finished)
    for cutoff, expected in (
        (CutoffRule(fraction=0.1), 3 * IMAGES // 10),
        (CutoffRule(threshold=0.0), 0),
        (CutoffRule(fraction=1.0), 3 * IMAGES),
    ):
        summary = audit_shards(plan(finished, cutoff=cutoff), engine=engine).summary
        assert summary is not None
        assert summary["mismatches"] == pytest.approx(expected, abs=2)
        assert summary["cutoff"] == cutoff.as_dict()
    audit_shards(plan(finished), engine=engine)
    assert table_of(finished).equals(before)


def test_a_changed_shard_is_noticed_and_the_others_keep_their_features(plan, root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "data")
    shards = list_embeddings(tmp_path / "data" / "images", tmp_path / "data" / "texts")
    audit_shards(small_plan(tmp_path / "out", shards, max_train_pairs=600))
    before = table_of(tmp_path / "out")
    np.save(shards[2].path, np.load(shards[2].path)[::-1])  # every image of it is now somebody else's
    again = Watched()
    audit_shards(small_plan(tmp_path / "out", shards, max_train_pairs=600), engine=again)
    assert [k for work, k in again.done if work == "prepare_shard"] == [2]
    assert [k for work, k in again.done if work == "score_shard"] == list(range(SHARDS))
    of_shard = slice(2 * 3 * IMAGES // SHARDS, 3 * 3 * IMAGES // SHARDS)
    was, now = (np.array(t["is_mismatch"].to_pylist())[of_shard].mean() for t in (before, table_of(tmp_path / "out")))
    assert was < 0.4
    assert now > was + 0.3  # it was 0.72, after 0.27


@pytest.mark.parametrize(("shards", "allowed"), [(1, 100), (4, 100), (5, 80), (20, 20), (1000, 16)])
def test_a_shard_contributes_at_most_four_times_its_even_share(shards: int, allowed: int, plan, tmp_path: Path) -> None:
    first = plan(tmp_path).shards[0]
    some = [replace(first, name=str(k)) for k in range(shards)]
    # 4 * 100 / shards, but no more than the sample and no fewer than 16
    assert small_plan(tmp_path, some, max_train_pairs=100).shard_sample == allowed


def test_too_few_pairs_get_a_note_instead_of_scores(tmp_path: Path) -> None:
    shards, _ = write_embeddings(tmp_path, num_images=20, shards=2)
    summary = audit_shards(small_plan(tmp_path / "out", shards)).summary
    assert summary is not None
    assert "60 pairs are too few to train on" in summary["note"]
    assert (summary["pairs"], summary["scored"], summary["mismatches"]) == (60, 0, 0)
    assert table_of(tmp_path / "out")["match_probability"].null_count == 60


def test_vectors_of_two_widths_are_a_user_error(tmp_path: Path) -> None:
    shards, _ = write_embeddings(tmp_path, num_images=60, shards=2)
    np.save(shards[1].path, np.load(shards[1].path)[:, :5])
    with pytest.raises(DataError, match=r"001\.npy have 5 numbers, those of the shards before it 24"):
        audit_shards(small_plan(tmp_path / "out", shards))


def test_the_folder_of_another_audit_is_refused_both_ways(plan, finished: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    one_piece = Audit.from_embeddings(rng.normal(size=(30, 4)), rng.normal(size=(30, 4)))
    one_piece.find(tmp_path / "plain")
    with pytest.raises(UserError, match="made without --sharded"):
        audit_shards(plan(tmp_path / "plain"), engine=run_locally)
    with pytest.raises(UserError, match="made with --sharded"):
        one_piece.find(finished)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match=r"holds other files, such as letter\.txt"):
        audit_shards(plan(tmp_path / "other"))
