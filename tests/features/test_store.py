"""The store keeps what was written, resumes where it stopped, and never mixes two extractions."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from sremkit.data.formats.features import JOURNAL, MANIFEST
from sremkit.errors import DataError, UserError
from sremkit.features import store as store_module
from sremkit.features.store import ArraySpec, FeatureStore


def small_plan(*, fingerprint: str = "abc", encoder: str = "fake", rows: int = 10) -> tuple[str, dict[str, ArraySpec]]:
    arrays = {
        "pooled": ArraySpec((rows, 3), encoder),
        "grid": ArraySpec((rows, 2, 3), encoder),
        "sentences": ArraySpec((4, 2), "other"),
    }
    return fingerprint, arrays


def image_rows(first: int, count: int) -> dict[str, np.ndarray]:
    """Rows that tell which they are: row k is full of k."""
    numbers = np.arange(first, first + count, dtype=np.float16)
    return {
        "pooled": np.broadcast_to(numbers[:, None], (count, 3)),
        "grid": np.broadcast_to(numbers[:, None, None], (count, 2, 3)),
    }


def text_rows(first: int, count: int) -> dict[str, np.ndarray]:
    return {"sentences": np.full((count, 2), first, dtype=np.float16)}


def write_all(store: FeatureStore, *, step: int = 5) -> None:
    """Write whatever is missing, and finish."""
    for first in range(store.done["images"], 10, step):
        store.write("images", first, image_rows(first, min(step, 10 - first)), {7: "broken"} if first <= 7 else {})
    if store.done["texts"] == 0:
        store.write("texts", 0, text_rows(0, 4), {})
    store.finish({"table.txt": ["one\n", "two\n"]}, {"name": "x"})


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_finished_folder_holds_the_arrays_the_tables_and_the_manifest(tmp_path: Path) -> None:
    with FeatureStore(tmp_path / "out", *small_plan()) as store:
        write_all(store)
    assert sorted(files_of(tmp_path / "out")) == [
        MANIFEST,
        "grid.npy",
        "pooled.npy",
        "sentences.npy",
        "table.txt",
    ]
    pooled = np.load(tmp_path / "out" / "pooled.npy", allow_pickle=False)
    assert pooled.dtype == np.float16
    np.testing.assert_array_equal(pooled, np.arange(10)[:, None].repeat(3, axis=1))
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "grid.npy")[:, 1, 2], np.arange(10))
    assert (tmp_path / "out" / "table.txt").read_text() == "one\ntwo\n"


def stopped_after_eight_rows(folder: Path) -> None:
    with FeatureStore(folder, *small_plan()) as store:
        store.write("images", 0, image_rows(0, 8), {7: "broken"})
        raise KeyboardInterrupt


def test_an_extraction_stopped_by_an_error_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    with FeatureStore(tmp_path / "whole", *small_plan()) as store:
        write_all(store)
    with pytest.raises(KeyboardInterrupt):
        stopped_after_eight_rows(tmp_path / "parts")
    assert not (tmp_path / "parts" / MANIFEST).exists()
    with FeatureStore(tmp_path / "parts", *small_plan()) as store:
        assert store.done == {"images": 8, "texts": 0}
        assert store.problems == {7: "broken"}
        write_all(store, step=1)
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")


def test_rows_written_after_the_journals_last_line_are_written_again(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, *small_plan(), save_seconds=1e9).__enter__()
    store.write("images", 0, image_rows(0, 3), {})
    store.save()
    store.write("images", 3, {name: rows + 50 for name, rows in image_rows(3, 3).items()}, {})
    for file in (*store._files.values(), store._journal):  # as a kill leaves it: written, not journalled
        file.close()
    with FeatureStore(tmp_path, *small_plan()) as store:
        assert store.done["images"] == 3
        write_all(store)
    np.testing.assert_array_equal(np.load(tmp_path / "pooled.npy")[:, 0], np.arange(10))


def test_an_interruption_between_two_arrays_counts_neither(tmp_path: Path, monkeypatch) -> None:
    """Had the count risen with the first array, the second one's rows would have stayed zero for ever."""
    write_rows = FeatureStore._write_rows

    def interrupted(store: FeatureStore, name: str, first: int, values: np.ndarray) -> None:
        if name == "grid":
            raise KeyboardInterrupt
        write_rows(store, name, first, values)

    monkeypatch.setattr(FeatureStore, "_write_rows", interrupted)
    with FeatureStore(tmp_path, *small_plan()) as store, pytest.raises(KeyboardInterrupt):
        store.write("images", 0, image_rows(0, 10), {})
    with FeatureStore(tmp_path, *small_plan()) as store:
        assert store.done["images"] == 0


def test_a_journal_cut_off_within_a_line_loses_that_line_only(tmp_path: Path) -> None:
    for first in (0, 4):
        with FeatureStore(tmp_path, *small_plan()) as store:
            store.write("images", first, image_rows(first, 4), {})
    journal = tmp_path / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-5])
    with FeatureStore(tmp_path, *small_plan()) as store:
        assert store.done["images"] == 4
        store.write("images", 4, image_rows(4, 2), {})
    with FeatureStore(tmp_path, *small_plan()) as store:  # what was cut off must not stand before the new line
        assert store.done["images"] == 6
        write_all(store)
    np.testing.assert_array_equal(np.load(tmp_path / "pooled.npy")[:, 0], np.arange(10))


def test_a_kill_before_the_arrays_were_made_is_no_obstacle(tmp_path: Path) -> None:
    FeatureStore(tmp_path, *small_plan())._begin()
    (tmp_path / ".partial-features.json").write_text("half")
    with FeatureStore(tmp_path, *small_plan()) as store:
        write_all(store)
    assert store.complete
    assert not (tmp_path / ".partial-features.json").exists()


def test_a_kill_between_manifest_and_journal_leaves_a_complete_folder(tmp_path: Path) -> None:
    with FeatureStore(tmp_path, *small_plan()) as store:
        write_all(store)
    (tmp_path / JOURNAL).write_text("left over")
    with FeatureStore(tmp_path, *small_plan()) as store:
        assert store.complete
    assert not (tmp_path / JOURNAL).exists()


CHANGED = {
    "other pairs": (small_plan(fingerprint="xyz"), "the pairs have changed since the extraction .* began"),
    "other encoder": (small_plan(encoder="new"), "made with other encoders"),
    "other kinds": (
        ("abc", {"pooled": ArraySpec((10, 3), "fake")}),
        "holds pooled, grid, sentences, but pooled was requested",
    ),
}


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("change", CHANGED)
def test_a_changed_plan_is_noticed(tmp_path: Path, change: str, finished: bool) -> None:
    with FeatureStore(tmp_path, *small_plan()) as store:
        store.write("images", 0, image_rows(0, 2), {})
        if finished:
            store.write("images", 2, image_rows(2, 8), {})
            store.finish({}, {})
    before = files_of(tmp_path)
    plan, sentence = CHANGED[change]
    with (
        pytest.raises(UserError, match=f"{sentence}.*remove this one to start again"),
        FeatureStore(tmp_path, *plan),
    ):
        pass
    assert files_of(tmp_path) == before


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "pooled.npy", np.ones(3))
    before = files_of(tmp_path)
    with (
        pytest.raises(UserError, match=r"holds other files, such as pooled\.npy"),
        FeatureStore(tmp_path, *small_plan()),
    ):
        pass
    assert files_of(tmp_path) == before


def test_a_file_instead_of_a_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="is a file"), FeatureStore(tmp_path / "out", *small_plan()):
        pass


@pytest.mark.parametrize("damage", ["gone", "short", "not an array"])
def test_an_array_that_was_changed_meanwhile_is_noticed(tmp_path: Path, damage: str) -> None:
    with FeatureStore(tmp_path, *small_plan()) as store:
        store.write("images", 0, image_rows(0, 2), {})
    file = tmp_path / "grid.npy"
    content = file.read_bytes()
    file.unlink()
    if damage != "gone":
        file.write_bytes(content[:-10] if damage == "short" else b"x" * len(content))
    with (
        pytest.raises(DataError, match=r"grid\.npy was changed since the extraction stopped"),
        FeatureStore(tmp_path, *small_plan()),
    ):
        pass


def test_two_extractions_cannot_write_to_one_folder(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from sremkit.errors import UserError
from sremkit.features.store import FeatureStore
from test_store import small_plan
try:
    FeatureStore({str(tmp_path)!r}, *small_plan()).__enter__()
except UserError as problem:
    print(problem)
"""
    with FeatureStore(tmp_path, *small_plan()):
        second = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "another extraction is writing to" in second.stdout


def test_a_full_disk_is_noticed_before_the_work(tmp_path: Path, monkeypatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda path: usage(9 * 10**9, 8 * 10**9, 10**9))
    # 10⁹ rows of 3 and of 2 × 3 numbers, two bytes each: 18 · 10⁹ bytes
    with (
        pytest.raises(UserError, match=r"take 18\.0 GB more, but .* has 1\.0 GB left; .*leave out 'grid'"),
        FeatureStore(tmp_path, *small_plan(rows=10**9)),
    ):
        pass


def written_in_two_parts(folder: Path) -> None:
    with FeatureStore(folder, *small_plan()) as store:
        for first in (0, 5):
            store.write("images", first, image_rows(first, 5), {})


def test_a_full_disk_is_a_clear_error_and_rows_are_kept(tmp_path: Path, monkeypatch) -> None:
    write_rows = FeatureStore._write_rows

    def full_after_five(store: FeatureStore, name: str, first: int, values: np.ndarray) -> None:
        if first == 5:
            raise OSError(28, "No space left on device")
        write_rows(store, name, first, values)

    monkeypatch.setattr(FeatureStore, "_write_rows", full_after_five)
    with pytest.raises(UserError, match=r"No space left on device.*it resumes from here"):
        written_in_two_parts(tmp_path)
    with FeatureStore(tmp_path, *small_plan()) as store:
        assert store.done["images"] == 5


def test_rows_out_of_order_or_of_another_shape_are_refused(tmp_path: Path) -> None:
    with FeatureStore(tmp_path, *small_plan()) as store:
        with pytest.raises(ValueError, match="row 3 of 'images' was given where row 0 is expected"):
            store.write("images", 3, image_rows(3, 2), {})
        with pytest.raises(ValueError, match=r"pooled: rows of shape \(4,\) where \(3,\) is expected"):
            store.write("images", 0, {"pooled": np.zeros((2, 4))}, {})
        with pytest.raises(ValueError, match="different numbers of rows"):
            store.write("images", 0, {**image_rows(0, 2), "pooled": np.zeros((1, 3))}, {})


@pytest.mark.alone
def test_writing_takes_little_memory(tmp_path: Path) -> None:
    rows = 4000  # of 92,160 bytes: 369 MB
    plan = ("abc", {"grid": ArraySpec((rows, 36, 1280), "fake")})
    part = {"grid": np.ones((50, 36, 1280), dtype=np.float16)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with FeatureStore(tmp_path, *plan) as store:
        for first in range(0, rows, 50):
            store.write("images", first, part, {})
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (tmp_path / "grid.npy").stat().st_size > 360e6
    assert grown < 60 * 1024, f"{grown / 1024:.0f} MB"
