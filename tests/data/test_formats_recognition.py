"""Every layout is recognised by its own format and by no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from layouts import (
    coco_content,
    image_rows,
    karpathy_content,
    write_features,
    write_flickr8k,
    write_image,
    write_json,
    write_precomp,
    write_shard,
)
from sremkit.data import FORMATS, read_pairs
from sremkit.errors import DataError

CAPTIONS = {"a.png": ["a dog"], "b.png": ["a cat"]}


def folder_of_images(folder: Path) -> Path:
    for name, (text,) in CAPTIONS.items():
        write_image(folder / "deep" / name).with_suffix(".txt").write_text(text)
    return folder


def table(path: Path, separator: str) -> Path:
    for name in CAPTIONS:
        write_image(path.parent / name)
    rows = [("image", "text"), *((name, text) for name, (text,) in CAPTIONS.items())]
    path.write_text("".join(f"{separator.join(row)}\n" for row in rows))
    return path


def parquet(path: Path) -> Path:
    table(path.with_suffix(".csv"), ",")
    columns = {"image": list(CAPTIONS), "text": [text for (text,) in CAPTIONS.values()]}
    pq.write_table(pa.table(columns), path)
    return path


def backwards(content: dict) -> dict:
    return dict(reversed(list(content.items())))


def beside_other_files(folder: Path) -> Path:
    """What img2dataset leaves: statistics and a table beside each shard."""
    write_shard(folder / "00000.tar", {"0": "a dog", "1": "a cat"})
    write_json(folder / "00000_stats.json", {"count": 2})
    pq.write_table(pa.table({"url": ["https://x.org"]}), folder / "00000.parquet")
    return folder


def beside_an_unpacked_sample(folder: Path) -> Path:
    write_image(folder / "0.png").with_suffix(".txt").write_text("a dog")
    return write_shard(folder / "x.tar", SAMPLES).parent


SAMPLES = {"0": "a dog", "1": "a cat"}
LAYOUTS = {
    "precomp": ("precomp", lambda p: write_precomp(p, "train", image_rows(2), ["a dog", "a cat"])),
    "karpathy": ("karpathy", lambda p: write_json(p / "dataset_x.json", karpathy_content(CAPTIONS))),
    "karpathy backwards": (
        "karpathy",
        lambda p: write_json(p / "x.json", backwards(karpathy_content(CAPTIONS))),
    ),
    "coco": ("coco", lambda p: write_json(p / "captions_train2017.json", coco_content(CAPTIONS))),
    "coco backwards": ("coco", lambda p: write_json(p / "captions.json", backwards(coco_content(CAPTIONS)))),
    "coco folder": (
        "coco",
        lambda p: write_json(p / "captions_train2017.json", coco_content(CAPTIONS)).parent,
    ),
    "csv": ("table", lambda p: table(p / "pairs.csv", ",")),
    "tsv": ("table", lambda p: table(p / "pairs.tsv", "\t")),
    "capitals": ("table", lambda p: table(p / "PAIRS.CSV", ",")),
    "parquet": ("table", lambda p: parquet(p / "pairs.parquet")),
    "tar": ("webdataset", lambda p: write_shard(p / "x.tar", SAMPLES)),
    "folder of tars": ("webdataset", lambda p: write_shard(p / "x.tar", SAMPLES).parent),
    "split folders of tars": ("webdataset", lambda p: write_shard(p / "train" / "x.tar", SAMPLES).parents[1]),
    "img2dataset": ("webdataset", beside_other_files),
    "tars beside images": ("webdataset", beside_an_unpacked_sample),
    "brace pattern": ("webdataset", lambda p: write_shard(p / "x-1.tar", SAMPLES).with_name("x-{1..1}.tar")),
    "folder of images": ("folder", folder_of_images),
    "flickr8k": ("flickr8k", lambda p: write_flickr8k(p, {"train": 1})),
    "features": ("features", lambda p: write_features(p, {"train": 1})),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_recognised_by_its_format_alone_and_read(tmp_path, layout):
    format, write = LAYOUTS[layout]
    path = write(tmp_path)
    assert [name for name in FORMATS if FORMATS[name].recognizes(path)] == [format]
    pairs = read_pairs(path)
    assert len(pairs) == 2
    assert pairs.image_of_text.dtype == np.int64
    assert pairs.skipped.count == 0


def test_nothing_is_recognised_in_an_empty_folder_or_a_foreign_file(tmp_path):
    (tmp_path / "notes.json").write_text('{"a": 1}')
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "notes.json", tmp_path / "none" / "pairs.json"):
        assert [name for name in FORMATS if FORMATS[name].recognizes(path)] == []
    with pytest.raises(DataError, match=r"none of the known formats .*coco.*webdataset.*--format"):
        read_pairs(tmp_path / "empty")


def test_the_error_for_images_without_captions_names_the_caption_file(tmp_path):
    write_image(tmp_path / "below" / "a.png")
    with pytest.raises(DataError, match=r"an image a\.png needs its caption in a\.txt next to it.*caption"):
        read_pairs(tmp_path)
    (tmp_path / "below" / "a.txt").write_text("a dog\n")  # so it is as the sentence says
    assert read_pairs(tmp_path).texts == ["a dog"]
    (tmp_path / "below" / "a.txt").unlink()
    (tmp_path / "pairs.csv").write_text("path,caption\nbelow/a.png,a cat\n")
    assert read_pairs(tmp_path / "pairs.csv").texts == ["a cat"]


def test_a_text_file_is_a_table_only_if_its_first_line_holds_a_tab(tmp_path):
    (tmp_path / "notes.txt").write_text("image, caption\na\tb\n")
    (tmp_path / "folder.txt").mkdir()
    for name in ("notes.txt", "folder.txt", "nowhere.txt"):
        assert [format for format in FORMATS if FORMATS[format].recognizes(tmp_path / name)] == []


@pytest.mark.parametrize("name", ["none.json", "none/none.csv", "none"])
def test_a_path_that_does_not_exist_is_reported_as_missing(tmp_path, name):
    with pytest.raises(DataError, match="does not exist"):
        read_pairs(tmp_path / name)


def test_an_unknown_option_of_a_folder_is_an_error_that_lists_the_known_ones(tmp_path):
    with pytest.raises(DataError, match="format 'folder' has no option 'image_root'; its options are: on_error"):
        read_pairs(folder_of_images(tmp_path), image_root="x")
