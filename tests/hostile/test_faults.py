"""Processes that are killed, disks that are full, folders that vanish: nothing is lost, and a sentence says why.

A few times each; `python -m benchmarks.faults` does it more often, with the real encoders, in two processes and on Ray.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("pyarrow")
if sys.platform != "linux":
    pytest.skip("limits and signals as Linux has them", allow_module_level=True)

from benchmarks import faults
from benchmarks.faults import Work

SHORT = ("--set", "training.epochs=3", "--set", "training.warmup_epochs=1")


def small_works() -> dict[str, Work]:
    works = {work.name: replace(work, setup="hostile.stand_ins") for work in faults.works()}
    audit, train = works["audit"], works["train"]
    images = partial(faults.write_images, images=20)
    works["audit"] = replace(audit, prepare=images, arguments=("audit", "pairs.csv", "-o", "{out}", "--workers", "1"))
    works["features"] = replace(works["features"], prepare=images)
    works["train"] = replace(train, arguments=(*train.arguments, *SHORT))
    for name in ("export csv", "export uids", "export fiftyone"):
        works[name] = replace(works[name], prepare=partial(faults.write_audit, rows=4_000))
    return works


WORKS = small_works()


def test_killed_at_random_it_ends_with_the_same_bytes() -> None:
    for name in ("features", "export fiftyone"):
        figures = faults.kill_at_random(WORKS[name], 2)
        assert figures.defects == []
        assert figures.times == 2


@pytest.mark.parametrize("name", ["audit", "export uids", "train"])
def test_a_full_disk_gives_a_sentence_and_nothing_is_lost(name: str) -> None:
    try:
        figures = faults.fill_disk(WORKS[name], (16_384,))
    except PermissionError as cause:
        pytest.skip(str(cause))
    assert figures.defects == []
    assert figures.note.startswith("1 told")


@pytest.mark.parametrize("name", ["features", "export csv"])
def test_a_limit_of_file_sizes_gives_a_sentence_and_nothing_is_lost(name: str) -> None:
    figures = faults.limit_file_size(WORKS[name], (1_000,))
    assert figures.defects == []
    assert figures.note == "1 told"


def test_a_read_only_disk_gives_a_sentence() -> None:
    try:
        assert faults.make_read_only(WORKS["train"]).defects == []
    except PermissionError as cause:
        pytest.skip(str(cause))


def test_an_output_folder_that_vanishes_gives_a_sentence() -> None:
    assert faults.remove_output(WORKS["audit"], 1).defects == []


@pytest.mark.parametrize("name", ["audit", "export csv", "train"])
def test_a_second_process_is_told_and_does_not_disturb_the_first(name: str) -> None:
    work = WORKS[name]
    if name == "train":  # long enough to be stopped while it writes
        work = replace(work, arguments=(*work.arguments, "--set", "training.epochs=40"))
    assert faults.start_second(work).defects == []


@pytest.mark.parametrize("name", ["features", "train"])
def test_64_descriptors_are_enough(name: str) -> None:
    assert faults.limit_descriptors(WORKS[name]).defects == []
