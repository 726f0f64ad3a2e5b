"""Precomputed features: counts decide which captions belong to which row, and the counts are checked."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from layouts import image_rows, write_precomp
from sremkit.data import read_pairs
from sremkit.errors import DataError


def captions(count: int) -> list[str]:
    return [f"caption {k}" for k in range(count)]


def test_five_captions_a_row_belong_to_that_row(tmp_path):
    rows = image_rows(3)
    pairs = read_pairs(write_precomp(tmp_path, "train", rows, captions(15)))
    assert (len(pairs), pairs.num_images, pairs.split) == (15, 3, "train")
    assert pairs.image_of_text.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert pairs.pair_ids[14] == "14"
    assert pairs.texts[6] == "caption 6"
    np.testing.assert_array_equal(pairs.image_features.rows(np.array([2, 0])).values, rows[[2, 0]])


@pytest.mark.parametrize("per_image", [1, 2, 3, 7])
def test_any_whole_number_of_captions_a_row_is_read(tmp_path, per_image):
    pairs = read_pairs(write_precomp(tmp_path, "train", image_rows(4), captions(4 * per_image)))
    assert pairs.image_of_text.tolist() == [k // per_image for k in range(4 * per_image)]
    assert pairs.num_images == 4


def test_rows_repeated_five_times_are_one_image_each(tmp_path):
    rows = image_rows(4)
    pairs = read_pairs(write_precomp(tmp_path, "dev", rows.repeat(5, axis=0), captions(20)), split="dev")
    assert pairs.num_images == 4
    assert pairs.image_of_text.tolist() == [k // 5 for k in range(20)]
    np.testing.assert_array_equal(pairs.image_features.rows(np.arange(4)).values, rows)


def test_repeated_rows_that_hold_nan_still_count_as_repeated(tmp_path):
    rows = image_rows(2)
    rows[0, 0, 0] = np.nan
    assert read_pairs(write_precomp(tmp_path, "dev", rows.repeat(5, axis=0), captions(10)), split="dev").num_images == 2


def test_as_many_rows_as_captions_without_repetition_are_one_to_one(tmp_path):
    pairs = read_pairs(write_precomp(tmp_path, "train", image_rows(10), captions(10)))
    assert pairs.num_images == 10
    assert pairs.image_of_text.tolist() == list(range(10))


@pytest.mark.parametrize("odd_group", [0, 2, 3], ids=["first", "middle", "last"])
def test_a_partly_repeated_file_is_refused_with_its_rows(tmp_path, odd_group):
    rows = image_rows(4).repeat(5, axis=0)
    rows[5 * odd_group + 4] += 1
    folder = write_precomp(tmp_path, "dev", rows, captions(20))
    with pytest.raises(DataError, match=rf"dev_ims\.npy.*rows {5 * odd_group} to {5 * odd_group + 4} differ") as caught:
        read_pairs(folder, split="dev")
    assert "captions_per_image=1" in str(caught.value)
    assert read_pairs(folder, split="dev", captions_per_image=1).num_images == 20


def test_another_repetition_is_read_when_it_is_named(tmp_path):
    folder = write_precomp(tmp_path, "test", image_rows(4).repeat(3, axis=0), captions(12))
    assert read_pairs(folder, split="test", captions_per_image=3).num_images == 4
    with pytest.raises(DataError, match="rows 2 to 3 differ"):
        read_pairs(folder, split="test", captions_per_image=2)
    with pytest.raises(DataError, match="12 rows, not a multiple of captions_per_image=5"):
        read_pairs(folder, split="test", captions_per_image=5)


def test_a_repetition_that_was_named_but_is_not_there_is_refused(tmp_path):
    folder = write_precomp(tmp_path, "test", image_rows(10), captions(10))
    with pytest.raises(DataError, match="rows 0 to 4 differ"):
        read_pairs(folder, split="test", captions_per_image=5)


def test_counts_that_do_not_fit_name_both_files_and_both_counts(tmp_path):
    folder = write_precomp(tmp_path, "train", image_rows(3), captions(14))
    with pytest.raises(DataError) as caught:
        read_pairs(folder)
    for part in ("train_ims.npy has 3 rows", "train_caps.txt has 14 captions", "same split"):
        assert part in str(caught.value)


def test_a_blank_last_line_is_pointed_out_where_counts_do_not_fit(tmp_path):
    folder = write_precomp(tmp_path, "train", image_rows(3), [*captions(15), ""])
    with pytest.raises(DataError, match="last line is blank"):
        read_pairs(folder)


def test_more_rows_than_captions_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"has 6 rows and .* has 3 captions"):
        read_pairs(write_precomp(tmp_path, "train", image_rows(6), captions(3)))


def test_a_forced_number_that_contradicts_the_counts_is_refused(tmp_path):
    folder = write_precomp(tmp_path, "train", image_rows(3), captions(15))
    assert read_pairs(folder, captions_per_image=5).num_images == 3
    with pytest.raises(DataError, match="5 to a row, not 3"):
        read_pairs(folder, captions_per_image=3)
    with pytest.raises(DataError, match="at least 1, got 0"):
        read_pairs(folder, captions_per_image=0)


def test_a_tsv_gives_image_ids_and_takes_quotation_marks_as_text(tmp_path):
    write_precomp(tmp_path, "train", image_rows(3), [])
    (tmp_path / "train_caps.txt").rename(tmp_path / "train_caps.tsv")
    (tmp_path / "train_caps.tsv").write_text('7\t"two\n8\tthree "dogs"\n9\tcats\n')
    pairs = read_pairs(tmp_path)
    assert pairs.image_ids == ["7", "8", "9"]
    assert pairs.texts == ['"two', 'three "dogs"', "cats"]


def test_a_tsv_line_without_a_tab_is_named_or_skipped_in_place(tmp_path):
    write_precomp(tmp_path, "train", image_rows(3), [])
    (tmp_path / "train_caps.txt").unlink()
    (tmp_path / "train_caps.tsv").write_text("7\ttwo\n8 three\n9\tcats\n")
    with pytest.raises(DataError, match=r"train_caps\.tsv, line 2: no tab"):
        read_pairs(tmp_path)
    pairs = read_pairs(tmp_path, on_error="skip")
    assert pairs.pair_ids == ["0", "2"]
    assert pairs.image_of_text.tolist() == [0, 2]
    assert dict(pairs.skipped.reasons) == {"no tab": 1}


def test_imram_names_its_features_feat(tmp_path):
    write_precomp(tmp_path, "testall", image_rows(3), captions(15))
    (tmp_path / "testall_ims.npy").rename(tmp_path / "testall_feat.npy")
    assert read_pairs(tmp_path, split="testall").num_images == 3


@pytest.mark.parametrize("lines", [4, 20], ids=["one a image", "one a caption"])
def test_image_ids_come_from_the_ids_file(tmp_path, lines):
    folder = write_precomp(tmp_path, "dev", image_rows(4).repeat(5, axis=0), captions(20))
    ids = [f"id{k * 4 // lines}" for k in range(lines)]
    (folder / "dev_ids.txt").write_text("\n".join(ids))
    assert read_pairs(folder, split="dev").image_ids == ["id0", "id1", "id2", "id3"]


def test_an_ids_file_of_another_length_is_refused(tmp_path):
    folder = write_precomp(tmp_path, "train", image_rows(4), captions(20))
    (folder / "train_ids.txt").write_text("a\nb\nc\n")
    with pytest.raises(DataError, match=r"train_ids\.txt has 3 lines for 4 images"):
        read_pairs(folder)


def test_an_empty_caption_is_named_with_its_line(tmp_path):
    texts = captions(10)
    texts[3] = "  "
    folder = write_precomp(tmp_path, "train", image_rows(2), texts)
    with pytest.raises(DataError, match=r"train_caps\.txt, line 4: the caption is empty.*on_error='skip'"):
        read_pairs(folder)


def test_skipping_leaves_the_numbers_of_the_images_alone(tmp_path):
    texts = captions(10)
    texts[:5] = [""] * 5
    pairs = read_pairs(write_precomp(tmp_path, "train", image_rows(2), texts), on_error="skip")
    assert pairs.num_images == 2
    assert pairs.image_of_text.tolist() == [1] * 5
    assert pairs.pair_ids == ["5", "6", "7", "8", "9"]
    assert pairs.skipped.count == 5
    assert "line 1" in pairs.skipped.examples[0]


def test_a_line_that_is_not_utf8_is_named_or_skipped_in_place(tmp_path):
    folder = write_precomp(tmp_path, "train", image_rows(2), captions(4))
    raw = (folder / "train_caps.txt").read_bytes().replace(b"caption 2", b"caf\xe9")
    (folder / "train_caps.txt").write_bytes(raw)
    with pytest.raises(DataError, match=r"train_caps\.txt, line 3: not UTF-8; byte 4 is 0xe9"):
        read_pairs(folder)
    pairs = read_pairs(folder, on_error="skip")
    assert pairs.texts == ["caption 0", "caption 1", "caption 3"]
    assert pairs.image_of_text.tolist() == [0, 0, 1]


def test_rare_line_separators_within_a_caption_do_not_shift_the_rest(tmp_path):
    """`str.splitlines` breaks at these, and each caption after them would belong to the wrong image."""
    texts = ["one\u2028line", "two\x85line", "three\x0cline", "four"]
    pairs = read_pairs(write_precomp(tmp_path, "train", image_rows(2), texts))
    assert pairs.texts == texts


def test_windows_line_ends_and_a_byte_order_mark_are_not_part_of_captions(tmp_path):
    folder = write_precomp(tmp_path, "train", image_rows(2), [])
    (folder / "train_caps.txt").write_bytes(b"\xef\xbb\xbfa dog\r\na cat\r\n")
    assert read_pairs(folder).texts == ["a dog", "a cat"]


def test_a_missing_split_is_answered_with_those_there_are(tmp_path):
    for split in ("train", "testall"):
        write_precomp(tmp_path, split, image_rows(2), captions(2))
    (tmp_path / "test_caps.txt").write_text("a caption without features\n")
    with pytest.raises(DataError, match="no split 'test'; it has: testall, train"):
        read_pairs(tmp_path, split="test")


def test_val_finds_dev(tmp_path):
    write_precomp(tmp_path, "dev", image_rows(2), captions(2))
    assert read_pairs(tmp_path, split="val").split == "dev"


def test_features_with_nan_are_named_when_they_are_read(tmp_path):
    rows = image_rows(3)
    rows[1, 2, 0] = np.nan
    pairs = read_pairs(write_precomp(tmp_path, "train", rows, captions(15)))
    with pytest.raises(DataError, match=r"train_ims\.npy, row 1: .*NaN"):
        pairs.image_features.rows(np.array([0, 1]))


@pytest.mark.parametrize("content", [b"", b"no array at all", b"\x93NUMPY\x01\x00"], ids=["empty", "text", "cut"])
def test_a_feature_file_that_is_no_array_is_refused_with_its_name(tmp_path, content):
    folder = write_precomp(tmp_path, "train", image_rows(2), captions(2))
    (folder / "train_ims.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"train_ims\.npy is not a readable \.npy file"):
        read_pairs(folder)


def test_a_feature_file_that_was_cut_off_is_refused(tmp_path):
    folder = write_precomp(tmp_path, "train", image_rows(20), captions(20))
    raw = (folder / "train_ims.npy").read_bytes()
    (folder / "train_ims.npy").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(DataError, match=r"train_ims\.npy is not a readable"):
        read_pairs(folder)


def test_repeated_features_survive_the_way_into_a_worker(tmp_path):
    rows = image_rows(3)
    pairs = read_pairs(write_precomp(tmp_path, "dev", rows.repeat(5, axis=0), captions(15)), split="dev")
    copied = pickle.loads(pickle.dumps(pairs.image_features))
    np.testing.assert_array_equal(copied.rows(np.array([2])).values, rows[[2]])


def test_a_file_instead_of_the_folder_is_refused(tmp_path):
    folder = write_precomp(tmp_path, "train", image_rows(2), captions(2))
    with pytest.raises(DataError, match=r"train_caps\.txt is not a folder"):
        read_pairs(folder / "train_caps.txt", format="precomp")
