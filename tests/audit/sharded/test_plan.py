"""Which shards there are, and what they contribute to the sample."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sharded import small_plan
from sremkit.audit.sharded.plan import Shard, list_embeddings, list_shards
from sremkit.errors import DataError, UserError
from sremkit.io import digest
from sremkit.training.checkpoint import write_checkpoint
from sremkit.version import __version__


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


def test_the_key_is_that_of_shards_settings_and_version(tmp_path: Path) -> None:
    plan = small_plan(tmp_path / "out", [Shard("a", Path(__file__))])
    assert plan.key == digest([plan.stamps, asdict(plan.settings), plan.max_train_pairs, __version__])
    other = replace(plan, settings=replace(plan.settings, seed=plan.settings.seed + 1))
    assert other.key != plan.key


def test_a_model_of_0_1_is_fitted_again(tmp_path: Path) -> None:
    plan = small_plan(tmp_path / "out", [Shard("a", Path(__file__))])
    assert not plan.has_model()
    write_checkpoint(plan.model, {"rising": torch.zeros(1)}, {"key": plan.key, "folds": []})
    assert not plan.has_model()
    write_checkpoint(plan.model, {"sorted_statistic": torch.zeros(1)}, {"key": plan.key, "names": {}})
    assert plan.has_model()
