"""The table of an audit: how it is built, and how it is read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from audit.small_tables import make_pairs
from sremkit.audit.embed import EmbeddedPairs
from sremkit.audit.inputs import source_of_pairs
from sremkit.audit.result_table import METADATA, ResultTable, build_table, read_summary, write_table
from sremkit.audit.scoring.types import PairScores
from sremkit.data.pairs import MISSING
from sremkit.errors import DataError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def test_better_texts_and_images_are_named_by_their_indices(tmp_path: Path) -> None:
    pairs = make_pairs()
    numbers = dict.fromkeys(("rank_i2t", "rank_t2i", "fold"), np.array([1, 1, 1]))
    energies = dict.fromkeys(("energy_i2t", "energy_t2i"), np.zeros(3, dtype=np.float32))
    scores = PairScores(
        match_prob=np.array([0.1, 0.9, 0.1]),
        better_text=np.array([1, -1, -1]),
        better_image=np.array([0, -1, 1]),
        candidates=3,
        noise_rate=None,
        note="",
        **numbers,
        **energies,
    )
    none, is_mismatch = np.full(3, MISSING), np.array([True, False, True])
    duplicates = {"duplicate_text_group": none, "duplicate_image_group": none}
    embedded = EmbeddedPairs(pairs, np.arange(3), {})
    table = build_table(source_of_pairs(pairs), embedded, scores, is_mismatch, duplicates)
    assert table["better_text"].to_pylist() == ["two", None, None]
    assert table["better_text_id"].to_pylist() == ["q", None, None]
    assert table["better_image"].to_pylist() == ["x", None, "y"]


@pytest.fixture
def stored(tmp_path: Path) -> ResultTable:
    """Seven rows in row groups of three; row 2 has no score."""
    columns = {
        "id": [f"p{k}" for k in range(7)],
        "match_probability": [0.0, 0.1, None, 0.3, 0.4, 0.5, 0.6],
        "is_mismatch": [True, True, None, False, False, False, False],
    }
    facts = {"own": {"uid": "id"}, "source": {"format": "table"}}
    table = pa.table(columns).replace_schema_metadata({METADATA: json.dumps(facts).encode()})
    parquet.write_table(table, tmp_path / "pairs.parquet", row_group_size=3)
    return ResultTable(tmp_path)


def test_the_table_is_read_whole_by_column_by_row_and_in_chunks(stored: ResultTable) -> None:
    assert len(stored) == 7
    assert stored.facts["own"] == {"uid": "id"}
    assert stored.read(["id"])["id"].to_pylist() == [f"p{k}" for k in range(7)]
    np.testing.assert_array_equal(stored.numbers("match_probability"), [0, 0.1, np.nan, 0.3, 0.4, 0.5, 0.6])
    assert stored.flags("is_mismatch").tolist() == [True, True, False, False, False, False, False]
    assert stored.rows([6, 2, 6], ["id", "match_probability", "other"]) == {
        2: {"id": "p2", "match_probability": None, "other": None},
        6: {"id": "p6", "match_probability": 0.6, "other": None},
    }
    chunks = list(stored.chunks(["match_probability", "id"], num_rows=2))
    assert chunks[0].column_names == ["match_probability", "id"]
    assert [value for chunk in chunks for value in chunk["id"].to_pylist()] == [f"p{k}" for k in range(7)]
    assert max(len(chunk) for chunk in chunks) == 2


def test_a_column_that_the_table_does_not_have_is_empty(stored: ResultTable) -> None:
    assert "energy_i2t" not in stored
    assert np.isnan(stored.numbers("energy_i2t")).all()
    assert not stored.flags("energy_i2t").any()


def test_a_missing_damaged_or_foreign_table_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no finished audit"):
        ResultTable(tmp_path)
    write_table(pa.table({"id": ["a"]}), tmp_path / "pairs.parquet")
    with pytest.raises(DataError, match="was not written by `srem audit`"):
        ResultTable(tmp_path).facts["own"]
    content = (tmp_path / "pairs.parquet").read_bytes()
    (tmp_path / "pairs.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="is damaged"):
        ResultTable(tmp_path)


def test_a_summary_of_an_earlier_version_gets_the_new_keys(tmp_path: Path) -> None:
    assert read_summary(tmp_path) == {}
    old = {"pairs": 3, "judged": 2, "choice": {"precision": 0.95}, "by_shard": {"shards": 4}}
    (tmp_path / "summary.json").write_text(json.dumps(old))
    assert read_summary(tmp_path) == {
        "pairs": 3,
        "scored": 2,
        "cutoff": {"precision": 0.95},
        "sharded": {"shards": 4},
    }


def test_a_table_of_0_1_opens_with_todays_column_names(tmp_path) -> None:
    old = {"id": ["a", "b"], "mismatch_score": [0.25, None], "is_mismatch": [True, None]}
    parquet.write_table(pa.table(old), tmp_path / "pairs.parquet")
    stored = ResultTable(tmp_path)
    assert "match_probability" in stored
    assert "mismatch_score" not in stored
    assert stored.read().column_names == ["id", "match_probability", "is_mismatch"]
    assert stored.read(["match_probability", "id"]).to_pylist()[0] == {"match_probability": 0.25, "id": "a"}
    assert next(stored.chunks(["match_probability", "id"])).column_names == ["match_probability", "id"]
    assert stored.rows([0], ["match_probability", "id"]) == {0: {"match_probability": 0.25, "id": "a"}}
    np.testing.assert_array_equal(stored.numbers("match_probability"), [0.25, np.nan])


def test_a_users_own_column_with_the_old_name_stays(tmp_path) -> None:
    new = {"mismatch_score": ["theirs"], "match_probability": [0.5]}
    parquet.write_table(pa.table(new), tmp_path / "pairs.parquet")
    assert ResultTable(tmp_path).read().to_pydict() == new
