"""Names of splits."""

from __future__ import annotations

import pytest

from sremkit.data.format_utils import choose_split, split_in_name
from sremkit.errors import DataError


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("captions_train2017", "train"),
        ("captions_val2014", "val"),
        ("test-000", "test"),
        ("cc3m.Validation.00", "validation"),
        ("dev", "dev"),
        ("trains-000", None),
        ("latest", None),
        ("shard-000", None),
        ("train_test", None),
    ],
)
def test_a_name_contains_a_split_only_as_a_whole_word(name, split):
    assert split_in_name(name) == split


def test_names_for_validation_are_one_split_unless_two_are_there():
    assert choose_split("dev", ["train", "val"], "x") == "val"
    assert choose_split("validation", ["dev"], "x") == "dev"
    assert choose_split("dev", ["dev", "val"], "x") == "dev"
    with pytest.raises(DataError, match="x has no split 'valid'; it has: dev, val"):
        choose_split("valid", ["dev", "val"], "x")


def test_other_names_are_never_exchanged():
    with pytest.raises(DataError, match="has no split 'test'; it has: testall, val"):
        choose_split("test", ["val", "testall"], "x")
