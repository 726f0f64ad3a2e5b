"""What is remembered of each pair, and the file it goes to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest
import torch

from sremkit import SREM
from sremkit.objectives.terms import PairReport
from sremkit.training.metrics import COLUMNS, PairStatistics


class CountedIds(list[str]):
    """Ids that know how often they were read through."""

    readings = 0

    def __iter__(self) -> Iterator[str]:
        self.readings += 1
        return super().__iter__()


def test_files_of_all_epochs_name_the_pairs_and_the_ids_are_read_once(tmp_path: Path) -> None:
    ids = CountedIds(["a", "b", "c", "d"])
    statistics = PairStatistics(ids, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for epoch, rows in enumerate(([3, 1], [0, 2, 1])):
        terms = SREM()(torch.randn(len(rows), len(rows), generator=generator))
        statistics.update(torch.tensor(rows), terms.report)
        statistics.write(tmp_path / f"{epoch}.parquet")
        table = pyarrow.parquet.read_table(tmp_path / f"{epoch}.parquet")
        assert table.column_names == ["pair_id", *COLUMNS]
        assert table["pair_id"].to_pylist() == ["a", "b", "c", "d"]
        energies = table["energy_i2t"].to_pylist()
        # A pair that did not come by in this epoch has none.
        assert [k for k, energy in enumerate(energies) if energy is not None] == sorted(rows)
        assert [energies[row] for row in rows] == terms.energy_i2t.tolist()
        statistics.clear()
    assert ids.readings == 1


def test_an_epoch_without_statistics_leaves_no_file(tmp_path: Path) -> None:
    PairStatistics(["a"], torch.device("cpu")).write(tmp_path / "0.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("keep", "left"), [(0, []), (2, [3, 4]), (7, [0, 1, 2, 3, 4])])
def test_the_files_of_as_many_epochs_are_kept_as_was_asked(tmp_path: Path, keep: int, left: list[int]) -> None:
    statistics = PairStatistics(["a", "b"], torch.device("cpu"))
    statistics.update(torch.arange(2), SREM()(torch.eye(2)).report)
    for epoch in range(5):
        statistics.write_epoch(tmp_path, epoch, keep=keep)
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"epoch-{epoch:03d}.parquet" for epoch in left]


def test_a_method_that_decides_once_per_pair_fills_both_directions_and_leaves_out_the_rest(
    tmp_path: Path,
) -> None:
    statistics = PairStatistics(["a", "b", "c"], torch.device("cpu"))
    report = PairReport(clean=torch.tensor([True, False]), weight=torch.tensor([1.0, 0.25]))
    statistics.update(torch.tensor([2, 0]), report)
    statistics.write(tmp_path / "0.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "0.parquet")
    assert table.column_names == ["pair_id", "clean_i2t", "clean_t2i", "weight_i2t", "weight_t2i"]
    assert table["clean_t2i"].to_pylist() == [False, None, True]
    assert table["weight_i2t"].to_pylist() == [0.25, None, 1.0]
