"""Tables of pairs: CSV, TSV and Parquet."""

from __future__ import annotations

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layouts import write_image
from sremkit.data import read_pairs
from sremkit.errors import DataError


@pytest.fixture
def folder(tmp_path):
    """A folder with the images a.png (red), b.png (blue) and c d.png (green)."""
    for name, color in (("a.png", "red"), ("b.png", "blue"), ("c d.png", "green")):
        write_image(tmp_path / name, color)
    return tmp_path


def write(folder, text, name="pairs.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def write_parquet(folder, **columns):
    pq.write_table(pa.table(columns), folder / "pairs.parquet")
    return folder / "pairs.parquet"


def test_usual_column_names_are_found(folder):
    pairs = read_pairs(write(folder, "uid,Image_Path,CAPTION,extra\nx,a.png,a dog,1\ny,b.png,a cat,2\n"))
    assert pairs.pair_ids == ["x", "y"]
    assert pairs.texts == ["a dog", "a cat"]
    assert pairs.images.open(1).getpixel((8, 6)) == (0, 0, 255)


def test_named_columns_are_taken_although_others_have_usual_names(folder):
    path = write(folder, "id,image,text,sku,title\n1,none,-,x,a dog\n2,none,-,y,a cat\n")
    path.write_text(path.read_text().replace("none", "a.png"))
    pairs = read_pairs(path, id="sku", text="title")
    assert (pairs.pair_ids, pairs.texts) == (["x", "y"], ["a dog", "a cat"])


def test_rows_with_the_same_image_share_it(folder):
    pairs = read_pairs(write(folder, "image,text\na.png,a dog\nb.png,a cat\na.png,one dog\n"))
    assert pairs.image_ids == ["a.png", "b.png"]
    assert pairs.image_of_text.tolist() == [0, 1, 0]


def test_without_an_id_column_rows_are_numbered_and_skipping_does_not_renumber(folder):
    path = write(folder, "image,text\na.png,a dog\n\nb.png,\na.png\nc d.png,a bird\n")
    pairs = read_pairs(path, on_error="skip")
    assert pairs.pair_ids == ["0", "3"]
    assert dict(pairs.skipped.reasons) == {"the caption is empty": 1, "1 fields where the header has 2": 1}


def test_csv_quoting_commas_line_breaks_and_a_byte_order_mark_are_understood(folder):
    path = write(folder, b'\xef\xbb\xbfimage,text\r\n"c d.png","a ""big"" dog, and\r\na cat"\r\nb.png,caf\xc3\xa9\r\n')
    pairs = read_pairs(path)
    assert pairs.texts == ['a "big" dog, and\r\na cat', "café"]
    assert pairs.image_ids == ["c d.png", "b.png"]


# Surrogates cannot be written as UTF-8; everything else may stand in a caption.
captions = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(captions, min_size=1, max_size=8))
def test_whatever_the_csv_module_writes_is_read_back(folder, texts):
    path = folder / "written.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "image"), *((text, "a.png") for text in texts)])
    assert list(read_pairs(path).texts) == [text.strip() for text in texts]


def test_quotation_marks_in_tsv_are_text_by_default(folder):
    path = write(folder, 'image\ttext\na.png\t"dog\nb.png\t"cat"\n', "pairs.tsv")
    assert read_pairs(path).texts == ['"dog', '"cat"']
    path = write(folder, 'image\ttext\na.png\t"dog"\nb.png\t"cat"\n', "pairs.tsv")
    assert read_pairs(path, quoting=True).texts == ["dog", "cat"]


def test_another_delimiter_can_be_named_and_its_lack_shows_the_columns(folder):
    path = write(folder, "image:text\na.png:a dog\n")
    assert read_pairs(path, delimiter=":").texts == ["a dog"]
    with pytest.raises(DataError, match=r"its columns are: image:text.*delimiter= in Python"):
        read_pairs(path)


def test_a_ragged_row_is_named_with_its_line(folder):
    path = write(folder, 'id,image,text,x\n1,a.png,"two\nlines",x\n2,b.png,a cat\n')
    with pytest.raises(DataError, match=r"pairs\.csv, line 4: 3 fields where the header has 4; .*on_error='skip'"):
        read_pairs(path)


def test_a_quotation_mark_that_is_never_closed_is_noticed(folder):
    path = write(folder, 'image,text\na.png,a dog\nb.png,"a cat\nc d.png,a bird\n')
    with pytest.raises(DataError, match=r"pairs\.csv, line 3: not readable as a row.*quotation mark"):
        read_pairs(path)
    assert read_pairs(path, on_error="skip").texts == ["a dog"]


def test_a_row_that_is_not_utf8_is_named_or_skipped(folder):
    path = write(folder, b"image,text\na.png,a dog\nb.png,caf\xe9\nc d.png,a bird\n")
    with pytest.raises(DataError, match=r"pairs\.csv, line 3: not UTF-8; save the file as UTF-8"):
        read_pairs(path)
    pairs = read_pairs(path, on_error="skip")
    assert pairs.pair_ids == ["0", "2"]
    assert dict(pairs.skipped.reasons) == {"not UTF-8": 1}


def test_a_header_that_is_not_utf8_is_refused(folder):
    with pytest.raises(DataError, match=r"pairs\.csv, line 1: not UTF-8"):
        read_pairs(write(folder, "image,text\na.png,a dog\n".encode("utf-16")))


def test_an_id_used_twice_is_named_or_the_second_row_skipped(folder):
    path = write(folder, "id,image,text\nx,a.png,a dog\nx,b.png,a cat\n,a.png,no id\n")
    with pytest.raises(DataError, match=r"pairs\.csv, line 3: the id has appeared before; .*'x'"):
        read_pairs(path)
    pairs = read_pairs(path, on_error="skip")
    assert pairs.texts == ["a dog"]
    assert dict(pairs.skipped.reasons) == {"the id has appeared before": 1, "the id is empty": 1}


def test_a_missing_image_is_named_or_its_rows_skipped(folder):
    path = write(folder, "image,text\na.png,a dog\nz.png,a zebra\n,nothing\n")
    with pytest.raises(
        DataError,
        match=r"pairs\.csv, line 3: the image is missing; put it at .*z\.png, or give the folder .*image_root",
    ):
        read_pairs(path)
    pairs = read_pairs(path, on_error="skip")
    assert pairs.texts == ["a dog"]
    assert dict(pairs.skipped.reasons) == {"the image is missing": 1, "no image": 1}


def test_relative_paths_start_at_the_file_or_at_the_root_given(folder, tmp_path, monkeypatch):
    (folder / "tables").mkdir()
    path = write(folder / "tables", "image,text\n../a.png,a dog\n")
    monkeypatch.chdir("/")
    assert read_pairs(path).images.open(0).size == (12, 8)
    path = write(folder / "tables", "image,text\na.png,a dog\n")
    assert read_pairs(path, image_root=folder).images.open(0).size == (12, 8)


def test_absolute_paths_are_taken_as_they_are(folder, tmp_path_factory):
    path = write(tmp_path_factory.mktemp("elsewhere"), f"image,text\n{folder / 'b.png'},a cat\n")
    assert read_pairs(path).images.open(0).getpixel((8, 6)) == (0, 0, 255)


def test_images_on_the_web_have_ids_but_no_images(folder):
    pairs = read_pairs(write(folder, "url,caption\nhttps://x.org/1.jpg,a dog\nhttps://x.org/2.jpg,a cat\n"))
    assert pairs.image_ids == ["https://x.org/1.jpg", "https://x.org/2.jpg"]
    assert pairs.images is None
    mixed = write(folder, "url,caption\na.png,a dog\nhttps://x.org/2.jpg,a cat\n")
    with pytest.raises(DataError, match=r"others on the web, such as https://x\.org/2\.jpg; download"):
        read_pairs(mixed)


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        (
            "photo,text",
            {},
            r"no column with a common name for the image; its columns are: photo, text; .*image=",
        ),
        (
            "image,words",
            {},
            r"common name for the text; its columns are: image, words; name one with --text \(text= in Python\)$",
        ),
        (
            "image,titel",
            {"text": "title"},
            r"no column 'title'; did you mean 'titel'\? its columns are: image, titel",
        ),
        (
            "image,url,text",
            {},
            r"several columns for image \('image', 'url'\); choose one with --image \(image= in Python\)",
        ),
        ("image,text,text", {}, r"several columns for text \('text', 'text'\)"),
        (
            "id,key,image,text",
            {},
            r"several columns for id \('id', 'key'\); choose one with --id \(id= in Python\)",
        ),
    ],
)
def test_columns_that_are_missing_or_ambiguous_are_listed(folder, header, options, message):
    with pytest.raises(DataError, match=message):
        read_pairs(write(folder, f"{header}\n{','.join('x' for _ in header.split(','))}\n"), **options)


def test_a_split_column_separates_the_rows(folder):
    path = write(folder, "image,text,split\na.png,a dog,train\nb.png,a cat,val\nc d.png,a bird,train\n")
    assert read_pairs(path).pair_ids == ["0", "2"]
    assert read_pairs(path, split="dev").texts == ["a cat"]
    with pytest.raises(DataError, match=r"pairs\.csv has no split 'test'; it has: train, val"):
        read_pairs(path, split="test")
    named = write(folder, "image,text,part\na.png,a dog,1\nb.png,a cat,2\n", "named.csv")
    assert read_pairs(named, split="2", split_column="part").texts == ["a cat"]


def test_a_table_without_splits_is_read_whole_for_every_split(folder):
    pairs = read_pairs(write(folder, "image,text\na.png,a dog\n"), split="test")
    assert (len(pairs), pairs.split) == (1, "test")


def test_features_follow_their_rows_past_skipped_rows_splits_and_shared_images(folder):
    text = "image,text,split\na.png,a,train\nb.png,,train\nc d.png,c,test\nb.png,b,train\na.png,a2,train\n"
    rows = np.arange(5, dtype=np.float32)[:, None].repeat(3, axis=1)
    np.save(folder / "images.npy", rows)
    np.save(folder / "texts.npy", rows + 10)
    options = {"image_features": folder / "images.npy", "text_features": folder / "texts.npy"}
    pairs = read_pairs(write(folder, text), on_error="skip", **options)
    assert pairs.image_ids == ["a.png", "b.png"]
    assert pairs.image_features.rows(np.arange(2)).values[:, 0].tolist() == [0, 3]
    assert pairs.text_features.rows(np.arange(3)).values[:, 0].tolist() == [10, 13, 14]


def test_features_replace_an_image_column_or_missing_images(folder):
    np.save(folder / "images.npy", np.ones((2, 3), dtype=np.float32))
    pairs = read_pairs(write(folder, "id,text\nx,a dog\ny,a cat\n"), image_features=folder / "images.npy")
    assert (pairs.image_ids, pairs.images) == (["x", "y"], None)
    path = write(folder, "image,text\nfar/a.png,a dog\nfar/b.png,a cat\n")
    assert read_pairs(path, image_features=folder / "images.npy").images is None
    path = write(folder, "image,text\na.png,a dog\nfar/b.png,a cat\n")
    assert read_pairs(path, image_features=folder / "images.npy").images is None
    path = write(folder, "image,text\na.png,a dog\nb.png,a cat\n")
    assert len(read_pairs(path, image_features=folder / "images.npy").images) == 2


def test_features_with_another_number_of_rows_are_refused(folder):
    np.save(folder / "images.npy", np.ones((3, 3), dtype=np.float32))
    path = write(folder, "id,text\nx,a dog\ny,a cat\n")
    with pytest.raises(DataError, match=r"images\.npy has 3 rows, but .*pairs\.csv has 2"):
        read_pairs(path, image_features=folder / "images.npy")


def test_parquet_gives_the_same_pairs_as_csv(folder):
    columns = {
        "id": [7, 8, 9],
        "image": ["a.png", "b.png", "a.png"],
        "caption": ["a dog", "a cat", "one dog"],
    }
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    csv_pairs = read_pairs(write(folder, "\n".join(["id,image,caption", *lines])))
    parquet_pairs = read_pairs(write_parquet(folder, **columns))
    for what in ("pair_ids", "texts", "image_ids"):
        assert getattr(csv_pairs, what) == getattr(parquet_pairs, what)
    assert csv_pairs.image_of_text.tolist() == parquet_pairs.image_of_text.tolist() == [0, 1, 0]
    assert parquet_pairs.images.open(1).getpixel((8, 6)) == (0, 0, 255)


def test_parquet_rows_with_nulls_or_other_types_are_named_or_skipped(folder):
    path = write_parquet(folder, image=["a.png", None, "b.png"], text=["a dog", "a cat", None])
    with pytest.raises(DataError, match=r"pairs\.parquet, row 1: no image"):
        read_pairs(path)
    assert read_pairs(path, on_error="skip").pair_ids == ["0"]
    with pytest.raises(DataError, match=r"pairs\.parquet, row 0: the image is not a path; .*image="):
        read_pairs(write_parquet(folder, image=[b"\x89PNG"], text=["a dog"]))
    with pytest.raises(DataError, match=r"pairs\.parquet, row 0: the caption is not text"):
        read_pairs(write_parquet(folder, image=["a.png"], text=[3.5]))


def test_parquet_splits_and_features_follow_their_rows(folder):
    np.save(folder / "texts.npy", np.arange(3, dtype=np.float32)[:, None])
    path = write_parquet(folder, image=["a.png"] * 3, text=["a", "b", "c"], split=["test", "train", "test"])
    pairs = read_pairs(path, split="test", text_features=folder / "texts.npy")
    assert pairs.texts == ["a", "c"]
    assert pairs.text_features.rows(np.arange(2)).values[:, 0].tolist() == [0, 2]


def test_a_parquet_file_that_was_cut_off_is_refused(folder):
    path = write_parquet(folder, image=["a.png"], text=["a dog"])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"pairs\.parquet is not a readable Parquet file .*copy or make it again"):
        read_pairs(path)


@pytest.mark.parametrize("name", ["none.csv", "none.tsv", "none.parquet"])
def test_a_missing_table_is_named(folder, name):
    with pytest.raises(DataError, match=rf"{name} does not exist"):
        read_pairs(folder / name)


def test_an_empty_table_is_named(folder):
    with pytest.raises(DataError, match=r"pairs\.csv is empty; its first line must name the columns"):
        read_pairs(write(folder, ""))
    with pytest.raises(DataError, match="holds no pairs"):
        read_pairs(write(folder, "image,text\n"))
