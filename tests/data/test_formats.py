"""What every registered format does, shown by the example that each writes itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sremkit.data import FORMATS, read_pairs
from sremkit.data.format_utils import UnknownSplitError
from sremkit.data.formats import EXAMPLE_TEXTS, find_format, format_options, read_collection
from sremkit.errors import DataError

pytestmark = pytest.mark.parametrize("name", list(FORMATS))


def options_of(name: str) -> list[str]:
    return format_options(name)


def test_an_example_is_recognised_by_its_format_alone(tmp_path: Path, name: str) -> None:
    path, _ = FORMATS[name].example(tmp_path)
    assert [other for other in FORMATS if FORMATS[other].recognizes(path)] == [name]
    assert find_format(path) == name


def test_an_example_is_read(tmp_path: Path, name: str) -> None:
    path, options = FORMATS[name].example(tmp_path)
    for given in (path, str(path)):
        pairs = read_pairs(given, **options)
        assert pairs.split == "train"
        assert tuple(pairs.texts) == EXAMPLE_TEXTS or path == Path("scenes")
        assert pairs.image_of_text.dtype == np.int64
        assert pairs.num_images == 2
        assert pairs.skipped.count == 0
        if pairs.images is not None:
            assert pairs.images.open(0).mode == "RGB"
        if pairs.image_features is not None:
            assert np.isfinite(pairs.image_features.rows(np.arange(2)).values).all()


def test_an_example_is_read_with_all_its_splits(tmp_path: Path, name: str) -> None:
    path, options = FORMATS[name].example(tmp_path)
    collection = read_collection(path, **options)
    (pairs,) = (collection.pairs[split] for split in (("train",) if collection.has_splits else ("all",)))
    assert list(pairs.pair_ids) == list(read_pairs(path, **options).pair_ids)


def test_an_unknown_split_is_an_error_that_names_the_known_ones(tmp_path: Path, name: str) -> None:
    path, options = FORMATS[name].example(tmp_path)
    if not read_collection(path, **options).has_splits:
        assert len(read_pairs(path, split="nowhere", **options)) == 2
        return
    with pytest.raises(UnknownSplitError, match="no split 'nowhere'") as caught:
        read_pairs(path, split="nowhere", **options)
    assert "train" in caught.value.known


def test_an_unknown_option_is_an_error_that_lists_the_known_ones(tmp_path: Path, name: str) -> None:
    path, options = FORMATS[name].example(tmp_path)
    with pytest.raises(DataError, match=f"'{name}' has no option 'nowhere'; its options are") as caught:
        read_pairs(path, **{**options, "nowhere": 1})
    assert all(option in str(caught.value) for option in format_options(name))
    with pytest.raises(DataError, match="has no option 'nowhere'"):
        read_collection(path, **{**options, "nowhere": 1})


def test_on_error_is_raise_or_skip(tmp_path: Path, name: str) -> None:
    path, options = FORMATS[name].example(tmp_path)
    if "on_error" not in format_options(name):
        return
    assert len(read_pairs(path, on_error="skip", **options)) == 2
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'skip'"):
        read_pairs(path, on_error="ignore", **options)


def test_a_format_is_described_in_one_line(name: str) -> None:
    assert 20 < len(FORMATS.describe(name)) < 120
