"""Feature sources: the right rows, the right masks, little memory, and bad values named."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sremkit.data.features import ArrayFeatures, MappedFeatures
from sremkit.data.pairs import SelectedRows
from sremkit.errors import DataError


def test_integers_times_scale_are_the_features() -> None:
    # (2, -3) * (0.5, 10) = (1, -30)
    features = ArrayFeatures(np.array([[9, 9], [2, -3]], dtype=np.int8), scale=np.array([0.5, 10], np.float32))
    values, mask = features.rows(np.array([1]))
    assert values.dtype == np.float32
    assert values.tolist() == [[1.0, -30.0]]
    assert mask is None


def test_mapped_rows_equal_the_files_and_survive_pickling(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(20, 3, 4)).astype(np.float32)
    np.save(tmp_path / "train_ims.npy", array)
    features = pickle.loads(pickle.dumps(MappedFeatures(tmp_path / "train_ims.npy")))
    values, mask = features.rows(np.array([7, 0, 7]))
    np.testing.assert_array_equal(values, array[[7, 0, 7]])
    assert mask.shape == (3, 3)
    assert mask.all()
    assert (len(features), features.dim) == (20, 4)


def test_items_are_mapped_to_rows_of_the_file(tmp_path: Path) -> None:
    array = np.arange(10, dtype=np.float32).reshape(10, 1)
    np.save(tmp_path / "dev.npy", array)
    features = MappedFeatures(tmp_path / "dev.npy", row_of_item=np.array([0, 5]))
    assert len(features) == 2
    assert features.rows(np.array([1])).values.tolist() == [[5.0]]


def test_selected_rows_are_renumbered() -> None:
    features = SelectedRows(ArrayFeatures(np.arange(5.0).reshape(5, 1)), np.array([4, 2]))
    assert features.rows(np.array([1, 0])).values.tolist() == [[2.0], [4.0]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_values_are_refused_by_file_and_row(tmp_path: Path, bad: float) -> None:
    array = np.zeros((10, 2, 3), dtype=np.float32)
    array[6, 1, 2] = bad
    np.save(tmp_path / "train_ims.npy", array)
    features = MappedFeatures(tmp_path / "train_ims.npy")
    features.rows(np.array([0, 5]))  # other rows are fine
    with pytest.raises(DataError, match=r"train_ims\.npy, row 6: .*NaN or infinite"):
        features.rows(np.array([0, 6]))


def test_large_but_finite_values_are_accepted() -> None:
    # Their float32 sum overflows, which must not be taken for a bad value.
    features = ArrayFeatures(np.full((1, 4), 3e38, dtype=np.float32))
    assert np.isfinite(features.rows(np.array([0])).values).all()


def test_opposite_infinities_do_not_cancel() -> None:
    with pytest.raises(DataError):
        ArrayFeatures(np.array([[np.inf, -np.inf]], np.float32)).rows(np.array([0]))


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train_ims\.npy does not exist"):
        MappedFeatures(tmp_path / "train_ims.npy")
    (tmp_path / "train_ims.npy").write_bytes(b"not numpy at all")
    with pytest.raises(DataError, match=r"train_ims\.npy is not a readable \.npy file"):
        MappedFeatures(tmp_path / "train_ims.npy")


ITERATE = """
import resource, sys
import numpy as np
from sremkit.data.batches import Batches
from sremkit.data.features import MappedFeatures
from sremkit.data.pairs import Pairs

class OneWord:
    def encode(self, text): return [1, 2]

features = MappedFeatures(sys.argv[1])
n = len(features)
names = [str(k) for k in range(n)]
pairs = Pairs("sparse", "train", names, names, np.arange(n), names, image_features=features)
batches = Batches(pairs, batch_size=128, vocabulary=OneWord(), seed=0)
next(iter(batches.epoch(0)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = sum(len(batch) for batch in batches.epoch(1))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(rows, (after - before) / 1024)
"""


@pytest.mark.alone
def test_iterating_takes_less_than_a_fifth_of_the_features(tmp_path: Path) -> None:
    path = tmp_path / "train_ims.npy"
    shape = (9_000, 36, 2048)  # 2.6 GB of zeros that take no room on the disk
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape).flush()
    assert path.stat().st_size > 2.6e9
    run = subprocess.run([sys.executable, "-c", ITERATE, str(path)], capture_output=True, text=True, check=True)
    rows, megabytes = run.stdout.split()
    assert int(rows) == shape[0]
    assert float(megabytes) < 500
